"""The fragmentation-aware choice: evict neighbours in address order, so that what is freed joins.

    candidates by address ──> window of neighbours that frees enough ──> the window that hurts least

Two freed blocks of 100 MB that do not touch cannot serve a request of 200 MB. So the unit of choice is a run of
candidates with nothing else between them (the idea of Coop, NeurIPS 2023), found with two pointers in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.remat.policy import neighbour_cost
from windtunnel.remat.value import Value

__all__ = ["cheapest_run"]

_GAP_SHARE = 1 / 64  # of a value's bytes: rounding and small change between two neighbours does not part them


def cheapest_run(values: Sequence[Value], short_by: int, now: float) -> list[Value]:
    """Return the run of address neighbours of at least `short_by` bytes that is cheapest to rematerialise.

    If no run is long enough, return the one that frees most: the caller asks again for the rest.
    """
    ordered = sorted(values, key=lambda value: value.address)
    best: list[Value] = []
    best_score = float("inf")
    longest: list[Value] = []
    for run in _runs(ordered):
        found, score = _best_window(run, short_by, now)
        if found and score < best_score:
            best, best_score = found, score
        if sum(v.n_bytes for v in run) > sum(v.n_bytes for v in longest):
            longest = run
    return best or longest


def _runs(ordered: Sequence[Value]) -> list[list[Value]]:
    runs: list[list[Value]] = []
    for value in ordered:
        last = runs[-1][-1] if runs else None
        if last is not None and value.address - (last.address + last.n_bytes) <= last.n_bytes * _GAP_SHARE:
            runs[-1].append(value)
        else:
            runs.append([value])
    return runs


def _best_window(run: list[Value], short_by: int, now: float) -> tuple[list[Value], float]:
    scores = [(value.cost + neighbour_cost(value)) / max(now - value.last_used, 1e-6) for value in run]
    best, best_score = (0, 0), float("inf")
    start, n_bytes, score = 0, 0, 0.0
    for end, value in enumerate(run):
        n_bytes += value.n_bytes
        score += scores[end]
        while n_bytes - run[start].n_bytes >= short_by:
            n_bytes -= run[start].n_bytes
            score -= scores[start]
            start += 1
        if n_bytes >= short_by and score < best_score:
            best, best_score = (start, end + 1), score
    return run[best[0] : best[1]], best_score
