"""Write report.html next to report.json.

    details of the tightest ranks (from their analyses) ──────────────────┐
    RunResult, trace, remat.json ─────────────────────────────────────────┴──> report.html

If the page cannot be written, the run gets a note and an exit code; the report is not affected.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windtunnel.foreign_files import parse_json, read_at_most
from windtunnel.memory.allocation_list import MOST_ALLOCATIONS
from windtunnel.report.page.run import run_document
from windtunnel.report.page.web_page import page_bytes, write_page
from windtunnel.report.results.run import RankResult, RunResult
from windtunnel.session.request import RunRequest

__all__ = ["PAGE", "allocation_limits", "ranks_in_detail", "remat_of_folder", "write_run_page"]

PAGE = "report.html"
_MOST_BYTES = 1 << 26  # of a remat.json, which has a few kilobytes per threshold
_MOST_RANKS = 8  # shown with every allocation: the tightest ones


def ranks_in_detail(results: Mapping[int, RankResult]) -> list[int]:
    """Return the ranks to show with every allocation: those that need most memory."""
    found = [r for r in results.values() if r.peak_bytes and r.timeline is not None]
    found.sort(key=lambda r: (-r.peak_with_fragments_bytes, r.rank))
    return [rank.rank for rank in found[:_MOST_RANKS]]


def allocation_limits(n_ranks: int) -> list[int]:
    """Return the maximum number of allocations per rank: half for the tightest, the other half for the others."""
    if n_ranks < 2:
        return [MOST_ALLOCATIONS] * n_ranks
    half = MOST_ALLOCATIONS // 2
    return [half] + [half // (n_ranks - 1)] * (n_ranks - 1)


def write_run_page(
    request: RunRequest,
    result: RunResult,
    details: Mapping[int, dict[str, Any]],
    trace: dict[str, Any] | None = None,
) -> str | None:
    """Write the page; returns a note if that failed."""
    n_devices = f"{request.world_size} × " if request.world_size > 1 else ""
    title = f"{Path(request.script).name} on {n_devices}{request.device.id}"
    document = run_document(result, title, details, trace, remat_of_folder(request.folder))
    try:
        write_page(request.folder / PAGE, page_bytes("run", document))
    except OSError as error:
        return f"{PAGE} could not be written: {error.strerror or error}"
    return None


def remat_of_folder(folder: Path) -> dict[str, Any] | None:
    """Return the remat.json of the folder, if there is one."""
    try:
        document = parse_json(read_at_most(folder / "remat.json", _MOST_BYTES))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
