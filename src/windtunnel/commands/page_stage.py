"""Write report.html beside report.json.

    recordings of some ranks ──> details (each in a process of its own) ──┐
    RunResult, trace, remat.json ─────────────────────────────────────────┴──> report.html

A page that cannot be written costs a note and the exit code, never the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windtunnel.commands.rank_recording import allocator_maker, recording_of
from windtunnel.commands.request import RunRequest
from windtunnel.foreign_files import parse_json, read_at_most
from windtunnel.memory.rank_detail import rank_detail
from windtunnel.report.page_detail import detail_document
from windtunnel.report.page_run import run_document
from windtunnel.report.result import RankResult, RunResult
from windtunnel.report.web_page import page_bytes, write_page

__all__ = ["PAGE", "allocations_told", "detail_rank", "ranks_in_detail", "remat_beside", "write_run_page"]

PAGE = "report.html"
_MOST_BYTES = 1 << 26  # of a remat.json, which has some kilobytes for each threshold
_MOST_RANKS = 8  # told in full detail: the tightest
_MOST_ALLOCATIONS = 500_000  # of all of them together


def ranks_in_detail(results: Mapping[int, RankResult]) -> list[int]:
    """The ranks worth every allocation: those that need most."""
    found = [r for r in results.values() if r.peak_bytes and r.timeline is not None]
    found.sort(key=lambda r: (-r.peak_with_fragments_bytes, r.rank))
    return [rank.rank for rank in found[:_MOST_RANKS]]


def allocations_told(n_ranks: int) -> list[int]:
    """How many of each rank: half of them for the tightest, the other half for the others."""
    if n_ranks < 2:
        return [_MOST_ALLOCATIONS] * n_ranks
    half = _MOST_ALLOCATIONS // 2
    return [half] + [half // (n_ranks - 1)] * (n_ranks - 1)


def detail_rank(request: RunRequest, recording_path: Path, card: int, most: int) -> dict[str, Any]:
    """Every allocation of one rank, packed; at most so many by name."""
    recording, _ = recording_of(request, recording_path)
    return detail_document(rank_detail(recording, allocator_maker(request, recording), card, most))


def write_run_page(
    request: RunRequest,
    result: RunResult,
    details: Mapping[int, dict[str, Any]],
    trace: dict[str, Any] | None = None,
) -> str | None:
    """Write the page; a sentence if that failed."""
    cards = f"{request.world_size} × " if request.world_size > 1 else ""
    title = f"{Path(request.script).name} on {cards}{request.device.id}"
    document = run_document(result, title, details, trace, remat_beside(request.folder))
    try:
        write_page(request.folder / PAGE, page_bytes("run", document))
    except OSError as error:
        return f"{PAGE} could not be written: {error.strerror or error}"
    return None


def remat_beside(folder: Path) -> dict[str, Any] | None:
    """What `windtunnel remat` found of the same program, if it was asked."""
    try:
        document = parse_json(read_at_most(folder / "remat.json", _MOST_BYTES))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
