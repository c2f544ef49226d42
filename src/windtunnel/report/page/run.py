"""The data of the page of a run: the report, every rank as columns, and the details of some ranks.

    RunResult, details, trace, remat.json ──> run_document ──> web_page.page_bytes("run", ...)

Thousands of ranks are stored as columns; only simulated ranks have details. If these do not fit in the page, those of
the ranks that need least memory are left out, and the page says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windtunnel.report.json.run import rank_document, run_fields
from windtunnel.report.page.checkpoint_advice import checkpoint_first
from windtunnel.report.page.columns import pack
from windtunnel.report.page.web_page import json_bytes
from windtunnel.report.results.fit_verdict import verdict
from windtunnel.report.results.run import RankResult, RunResult

__all__ = ["run_document"]

_STATUS = ("ok", "same_as", "failed", "oom")
_MOST_RANKS_IN_FULL = 64  # with a timeline; the others have their numbers only
_MOST_BYTES = 13_000_000  # of everything that can be left out: a page of 15 MB opens at once


def run_document(
    result: RunResult,
    title: str,
    details: Mapping[int, dict[str, Any]] | None = None,
    trace: dict[str, Any] | None = None,
    remat: dict[str, Any] | None = None,
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Plain values and packed columns, as templates/ reads them."""
    details, dropped = _that_fit(result, details or {})
    simulated = sorted((r for r in result.ranks if r.status != "same_as"), key=_need, reverse=True)
    tightest = result.tightest
    documents = {rank.rank: rank_document(rank) for rank in simulated}
    for rank in simulated[_MOST_RANKS_IN_FULL:]:
        documents[rank.rank] |= {"timeline": None, "build_time_us": {}}
    n_short = len(simulated) - _MOST_RANKS_IN_FULL
    short = [f"{n_short} ranks that need less are shown without their memory over time: it is in report.json"]
    return {
        "kind": "run",
        "title": title,
        "made_by": f"windtunnel {result.windtunnel}",
        "verdict": {
            "fits": result.fits and not result.mismatches,
            "sentence": verdict(result),
            "rank": tightest.rank if tightest is not None else None,
        },
        "checkpoint_first": checkpoint_first(result),
        "run": run_fields(result),
        "ranks": _ranks(result.ranks),
        "simulated": documents,
        "details": details,
        "trace": trace,
        "remat": remat,
        "left_out": [*left_out, *dropped, *(short if n_short > 0 else ())],
    }


def _that_fit(
    result: RunResult, details: Mapping[int, dict[str, Any]]
) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """Return the details of as many ranks as the page has room for, the tightest first, and a note on the others."""
    kept: dict[int, dict[str, Any]] = {}
    room = _MOST_BYTES
    for rank in sorted((r for r in result.ranks if r.rank in details), key=_need, reverse=True):
        room -= len(json_bytes(details[rank.rank]))
        if room < 0 and kept:
            break
        kept[rank.rank] = details[rank.rank]
    n_simulated = sum(rank.status != "same_as" and rank.peak_bytes > 0 for rank in result.ranks)
    if not kept or len(kept) == n_simulated:
        return kept, []
    shown = f"every allocation is shown for {len(kept)} of {n_simulated} simulated ranks, those that need most memory"
    return kept, [f"{shown}; the others have the timeline and what holds the peak"]


def _need(rank: RankResult) -> tuple[bool, int, int]:
    return rank.status == "failed", rank.peak_with_fragments_bytes, -rank.rank


def _ranks(ranks: Sequence[RankResult]) -> dict[str, Any]:
    return {
        "rank": pack([rank.rank for rank in ranks], is_rising=True),
        "status": pack([_STATUS.index(rank.status) for rank in ranks]),
        "same_as": pack([-1 if rank.same_as is None else rank.same_as for rank in ranks]),
        "fits": pack([rank.fits for rank in ranks]),
        "peak_bytes": pack([rank.peak_bytes for rank in ranks]),
        "peak_with_fragments_bytes": pack([rank.peak_with_fragments_bytes for rank in ranks]),
        "step_time_us": pack([float(rank.step_time_us or 0.0) for rank in ranks]),
        "statuses": list(_STATUS),
    }
