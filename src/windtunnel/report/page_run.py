"""What the page of a run is made of: the report, every rank as columns, and the details of some ranks.

    RunResult, details, trace, remat.json ──> run_document ──> web_page.page_bytes("run", ...)

Thousands of ranks are columns; only ranks that were simulated have more to tell. What does not fit in the page is left
out from the ranks that need least memory on, and the page says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windtunnel.report.json_file import rank_document, run_fields
from windtunnel.report.page_advice import checkpoint_first
from windtunnel.report.page_columns import pack
from windtunnel.report.result import RankResult, RunResult
from windtunnel.report.verdict import verdict

__all__ = ["run_document"]

_STATUS = ("ok", "same_as", "failed", "oom")
_MOST_RANKS_IN_FULL = 64  # a timeline each; the others keep their figures


def run_document(
    result: RunResult,
    title: str,
    details: Mapping[int, dict[str, Any]] | None = None,
    trace: dict[str, Any] | None = None,
    remat: dict[str, Any] | None = None,
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Plain values and packed columns, as templates/page/ reads them."""
    simulated = sorted((r for r in result.ranks if r.status != "same_as"), key=_need, reverse=True)
    tightest = result.tightest
    documents = {rank.rank: rank_document(rank) for rank in simulated}
    for rank in simulated[_MOST_RANKS_IN_FULL:]:
        documents[rank.rank] |= {"timeline": None, "build_time_us": {}}
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
        "details": dict(details or {}),
        "trace": trace,
        "remat": remat,
        "left_out": list(left_out),
    }


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
