"""Many ranks in few lines: one row for each simulated rank and all the ranks it represents.

RunResult ──> rank -> the ranks it shows ──> "0-7, 64-71", peak, status, what holds the memory
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.report.fitted_table import Cell, FittedTable
from windtunnel.report.rank_spans import rank_ranges
from windtunnel.report.results.run import RankResult, RunResult
from windtunnel.units import format_bytes

__all__ = ["members_of", "ranks_table"]

_MOST_ROWS = 40  # of the tightest ranks; report.json has the others
_HOLDERS = 2
_FORMS = (60, 36, 18)  # characters for the list of ranks, from a wide terminal to a narrow one


def members_of(result: RunResult) -> dict[int, list[int]]:
    """Return every simulated rank with the ranks that do the same work, including itself."""
    members: dict[int, list[int]] = {}
    for rank in result.ranks:
        members.setdefault(rank.rank if rank.same_as is None else rank.same_as, []).append(rank.rank)
    return members


def ranks_table(result: RunResult, members: dict[int, list[int]]) -> FittedTable:
    """Return one row for all ranks with the same memory; of very many rows, those that need the most."""
    alike: dict[object, list[RankResult]] = {}
    for rank in result.ranks:
        if rank.same_as is None:
            needs = (rank.peak_bytes, rank.peak_with_fragments_bytes, rank.at_peak_bytes)
            alike.setdefault((rank.status, rank.error, rank.steps, *needs), []).append(rank)
    by_need = sorted(alike.values(), key=lambda ranks: _need(ranks[0]))
    shown = sorted(by_need[:_MOST_ROWS], key=lambda ranks: ranks[0].rank)
    rows = [_row(ranks, _all_of(ranks, members)) for ranks in shown]
    if others := [rank for ranks in by_need[_MOST_ROWS:] for rank in ranks]:
        simulated = (f"{len(others)} ranks", "")
        n_ranks = str(len(_all_of(others, members)))
        rows.append(("(others, which need less)", n_ranks, simulated, "", "", "", ""))
    columns = ("ranks", "count", "simulated", "peak", "with fragments", "status", "what holds most")
    return FittedTable(columns, tuple(rows), ("what holds most", "ranks", "simulated"))


def _need(rank: RankResult) -> tuple[bool, int]:
    """Sorts failed ranks first, then the tightest."""
    return rank.status != "failed", -rank.peak_with_fragments_bytes


def _all_of(ranks: Sequence[RankResult], members: dict[int, list[int]]) -> list[int]:
    return [member for rank in ranks for member in members[rank.rank]]


def _row(ranks: Sequence[RankResult], members: Sequence[int]) -> tuple[Cell, ...]:
    rank = ranks[0]
    held = sorted(rank.at_peak_bytes.items(), key=lambda item: -item[1])[:_HOLDERS]
    named = [f"{role} {format_bytes(n)}" for role, n in held if n]
    ranges = rank_ranges(members)
    return (
        tuple(dict.fromkeys(_cut(ranges, width) for width in _FORMS)),
        str(len(members)),
        (_cut(rank_ranges(rank.rank for rank in ranks), _FORMS[-1]), ""),
        format_bytes(rank.peak_bytes),
        format_bytes(rank.peak_with_fragments_bytes),
        rank.status,
        (", ".join(named), named[0] if named else "", ""),
    )


def _cut(ranges: Sequence[str], width: int) -> str:
    """Return as many ranges as fit; the count is in the next column."""
    text = ", ".join(ranges)
    n = len(ranges)
    while len(text) > width and n > 1:
        n -= 1
        text = ", ".join(ranges[:n]) + ", …"
    return text
