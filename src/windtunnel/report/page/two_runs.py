"""The data of the page of two runs.

    RunDifference, pages of both runs if there are any ──> comparison_document ──> web_page.page_bytes("comparison", ...)

The document has every number for A and for B; the page only subtracts the two.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from windtunnel.memory.peak_difference import Change
from windtunnel.report.json.run import rank_document
from windtunnel.report.page.columns import pack
from windtunnel.report.page.source_lines import lines_at_peak
from windtunnel.report.results.fit_verdict import verdict
from windtunnel.report.results.run import RankResult, RunResult
from windtunnel.report.results.two_runs import RunDifference, Seconds, run_difference, sentences

__all__ = ["comparison_document"]

_MOST_MODULES = 4000  # rows of the page; the rest is summed up in one row
_MOST_LINES = 400
_MOST_TIMES = 400


def comparison_document(
    a_name: str,
    a: RunResult,
    a_page: dict[str, Any] | None,
    b_name: str,
    b: RunResult,
    b_page: dict[str, Any] | None,
) -> dict[str, Any]:
    """Plain values and packed columns, as templates/two_runs/*.js read them."""
    found, back = run_difference(a, b), run_difference(b, a)
    return {
        "kind": "comparison",
        "title": f"{_title(a_name, a_page)} and {_title(b_name, b_page)}",
        "made_by": f"windtunnel {b.windtunnel}",
        # In both directions: A and B can be swapped on the page.
        "sentences": {"a_to_b": sentences(found), "b_to_a": sentences(back)},
        "sides": {
            "a": _side(a_name, a, found.a_rank, a_page),
            "b": _side(b_name, b, found.b_rank, b_page),
        },
        "settings": [asdict(setting) for setting in found.settings],
        "roles": [_change(change) for change in found.roles],
        "modules": _modules(found),
        "tensors": [asdict(change) | {"difference": change.difference} for change in found.tensors],
        "lines": _lines(found, a_page, b_page),
        "time": _time(found),
        "rank_pairs": _ranks(a, b),
    }


def _title(name: str, page: dict[str, Any] | None) -> str:
    title = (page or {}).get("title")
    return f"{name} ({title})" if isinstance(title, str) else name


def _side(name: str, run: RunResult, rank: RankResult, page: dict[str, Any] | None) -> dict[str, Any]:
    document = rank_document(rank)
    kept = (
        "rank", "status", "fits", "steps", "peak_bytes", "peak_with_fragments_bytes", "peak_at", "at_peak_bytes",
        "usable_memory_bytes", "device_memory_bytes", "timeline", "out_of_memory", "error",
    )  # fmt: skip
    return {
        "name": name,
        "title": _title(name, page),
        "verdict": {"fits": run.fits and not run.mismatches, "sentence": verdict(run)},
        "device": run.device.name,
        "world_size": run.world_size,
        "level": run.level,
        "rank": {key: document[key] for key in kept},
        "step_seconds": run.time.step_seconds if run.time is not None else None,
        "tokens_per_second": run.time.tokens_per_second if run.time is not None else None,
    }


def _change(change: Change) -> dict[str, Any]:
    return asdict(change) | {"difference": change.difference}


def _modules(found: RunDifference) -> dict[str, Any]:
    rows = found.modules[:_MOST_MODULES]
    left = found.modules[_MOST_MODULES:]
    rest = (sum(c.a_bytes for c in left), sum(c.b_bytes for c in left)) if left else None
    return {"rows": [_change(change) for change in rows], "rest": rest, "n_rest": len(left)}


def _lines(
    found: RunDifference, a_page: dict[str, Any] | None, b_page: dict[str, Any] | None
) -> list[dict[str, Any]] | None:
    """Return bytes at the peak by source line; None if one of the pages does not have them."""
    a, b = (
        lines_at_peak(page, rank.rank, rank.peak_bytes) if page is not None else None
        for page, rank in ((a_page, found.a_rank), (b_page, found.b_rank))
    )
    if a is None or b is None:
        return None
    rows = [
        Change(where, role, a.get((where, role), 0), b.get((where, role), 0))
        for where, role in dict.fromkeys((*a, *b))
    ]
    rows.sort(key=lambda c: (-abs(c.difference), -max(c.a_bytes, c.b_bytes), c.module, c.role))
    return [_change(change) for change in rows[:_MOST_LINES]]


def _time(found: RunDifference) -> dict[str, Any] | None:
    if not found.has_time:
        return None
    return {
        "classes": [_seconds(each) for each in found.classes],
        "modules": [_seconds(each) for each in found.module_times[:_MOST_TIMES]],
        "ranks": [found.a_rank.rank, found.b_rank.rank],
    }


def _seconds(row: Seconds) -> dict[str, Any]:
    return asdict(row) | {"difference": row.b - row.a}


def _ranks(a: RunResult, b: RunResult) -> dict[str, Any] | None:
    """Compare rank by rank, if both runs have the same number of ranks."""
    if a.world_size != b.world_size or a.world_size == 1:
        return None
    others = {rank.rank: rank for rank in b.ranks}
    both = [(rank, others[rank.rank]) for rank in a.ranks if rank.rank in others]
    return {
        "rank": pack([left.rank for left, _ in both], is_rising=True),
        "a_bytes": pack([left.peak_with_fragments_bytes for left, _ in both]),
        "b_bytes": pack([right.peak_with_fragments_bytes for _, right in both]),
        "a_fits": pack([left.fits for left, _ in both]),
        "b_fits": pack([right.fits for _, right in both]),
        "a_step_us": pack([float(left.step_time_us or 0.0) for left, _ in both]),
        "b_step_us": pack([float(right.step_time_us or 0.0) for _, right in both]),
    }
