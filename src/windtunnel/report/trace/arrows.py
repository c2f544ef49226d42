"""Arrows of a trace: host to device, forward to backward, rank to rank.

    slices of each element ──> pairs of elements ──> Arrows (from the start of a slice to the start of another)

The backward of an operator is known exactly if the recording has what autograd saved and loaded. Otherwise it is found by
module: the last operator of a module call is linked to the first backward operator of the same module.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np

from windtunnel.cluster.program import RankTimeline, Work
from windtunnel.events.model import Kind, Phase, Recording
from windtunnel.events.recomputation import is_recomputed
from windtunnel.memory.lifetime import steps_of
from windtunnel.report.trace.model import Arrows, Slices

__all__ = ["BACKWARD", "LAUNCH", "PEERS", "arrows_between", "backward_pairs", "peer_pairs"]

LAUNCH, BACKWARD, PEERS = "launch", "forward to backward", "peers"


def arrows_between(
    category: str,
    slices: Slices,
    from_slice: np.ndarray,
    to_slice: np.ndarray,
    from_ns: np.ndarray | None = None,
) -> Arrows:
    """Arrows that leave at the start of a slice (or at `from_ns` in it) and never arrive before they leave."""
    known = np.flatnonzero((from_slice >= 0) & (to_slice >= 0))
    from_slice, to_slice = from_slice[known], to_slice[known]
    begin, end = slices.start_ns[from_slice], slices.end_ns[from_slice]
    leaves = begin if from_ns is None else np.clip(from_ns[known], begin, end)
    arrives = np.maximum(leaves, slices.start_ns[to_slice])
    kept = np.flatnonzero(arrives <= slices.end_ns[to_slice])
    return Arrows(category, from_slice[kept], to_slice[kept], leaves[kept], arrives[kept])


def backward_pairs(recording: Recording, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of operators and of the first operator of their backward, both among `rows` (sorted)."""
    is_saved = bool(np.isin(recording.columns["kind"], (Kind.SAVE, Kind.LOAD)).any())
    pairs = _by_saved_tensors(recording, rows) if is_saved else _by_module(recording, rows)
    table = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def peer_pairs(timelines: Sequence[RankTimeline]) -> Iterator[tuple[int, int, int, int]]:
    """(rank, its element, other rank, its element), ranks as positions in the argument.

    A send points at its receive; in a collective the rank that joined last points at the others. Matched calls have
    exactly the same start and end, because the simulation assigned them together.
    """
    met: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for position, timeline in enumerate(timelines):
        program = timeline.program
        calls = np.flatnonzero(np.isin(program.work, (Work.COLLECTIVE, Work.SEND, Work.RECEIVE)))
        calls = calls[np.isfinite(timeline.start[calls])]
        columns = (timeline.start, timeline.end, program.sequence, program.work == Work.COLLECTIVE)
        keys = zip(*(each[calls].tolist() for each in columns), strict=True)
        for element, key in zip(calls.tolist(), keys, strict=True):
            met.setdefault(key, []).append((position, element))
    for key, comers in met.items():
        if key[-1]:
            yield from _from_the_last(timelines, comers)
        else:
            yield from _from_the_sender(timelines, comers)


def _from_the_last(
    timelines: Sequence[RankTimeline], comers: list[tuple[int, int]]
) -> Iterator[tuple[int, int, int, int]]:
    groups: dict[object, list[tuple[int, int]]] = {}
    for position, element in comers:
        program = timelines[position].program
        ranks = program.groups[int(program.group[element])]
        # The groups of a represented rank are those of its representative: only their size is right.
        is_itself = all(timelines[p].rank == timelines[p].program.rank for p, _ in comers)
        groups.setdefault(ranks if is_itself else len(ranks), []).append((position, element))
    for members in groups.values():
        last = max(members, key=lambda member: timelines[member[0]].ready[member[1]])
        yield from ((*last, *member) for member in members if member[0] != last[0])


def _from_the_sender(
    timelines: Sequence[RankTimeline], comers: list[tuple[int, int]]
) -> Iterator[tuple[int, int, int, int]]:
    work = [Work(int(timelines[p].program.work[element])) for p, element in comers]
    receives = [each for each, kind in zip(comers, work, strict=True) if kind == Work.RECEIVE]
    for send, kind in zip(comers, work, strict=True):
        found = next((each for each in receives if _are_ends(timelines, send, each)), None)
        if kind == Work.SEND and found is not None:
            receives.remove(found)
            yield (*send, *found)


def _are_ends(timelines: Sequence[RankTimeline], send: tuple[int, int], receive: tuple[int, int]) -> bool:
    """Whether the two name each other; the peers of a represented rank are those of its representative and do not count."""
    a, b = timelines[send[0]], timelines[receive[0]]
    if send[0] == receive[0]:
        return False
    says_b = a.rank != a.program.rank or a.program.peer[send[1]] == b.rank
    return bool(says_b and (b.rank != b.program.rank or b.program.peer[receive[1]] == a.rank))


def _by_saved_tensors(recording: Recording, rows: np.ndarray) -> set[tuple[int, int]]:
    """Pair operators by the handles of saved tensors that were loaded for the backward pass."""
    columns = recording.columns
    kind, handle = columns["kind"], columns["subject"]
    is_backward = columns["phase"][rows] == Phase.BACKWARD
    backward = rows[is_backward]
    saves, loads = np.flatnonzero(kind == Kind.SAVE), np.flatnonzero(kind == Kind.LOAD)
    # Of a result the operator has returned, else it is about to run.
    at = np.searchsorted(rows, saves) - (columns["extra"][saves] == 1)
    saved_by = dict(_rows_at(handle[saves], rows, at))
    first: dict[int, int] = {}
    for h, row in _rows_at(handle[loads], backward, np.searchsorted(backward, loads)):
        if h in saved_by and saved_by[h] < row:
            first.setdefault(saved_by[h], row)
    return set(first.items())


def _rows_at(handles: np.ndarray, rows: np.ndarray, at: np.ndarray) -> list[tuple[int, int]]:
    there = (at >= 0) & (at < len(rows))
    return list(zip(handles[there].tolist(), rows[at[there]].tolist(), strict=True))


def _by_module(recording: Recording, rows: np.ndarray) -> set[tuple[int, int]]:
    """Pair the last operator of each forward call of a module with the matching part of its backward.

    Of a call that was computed again, the second time counts. With as many backward stretches as calls (or a
    multiple) the first call meets the first backward, as pipelines have it; otherwise (a pass without gradients)
    the call is the last one before the backward.
    """
    columns = recording.columns
    module, phase = columns["module"][rows].astype(np.int64), columns["phase"][rows].astype(np.int64)
    known = (module >= 0) & ((phase == Phase.FORWARD) | (phase == Phase.BACKWARD))
    rows, module, phase = rows[known], module[known], phase[known]
    if len(rows) == 0:
        return set()
    step = steps_of(recording, rows)
    enters = np.flatnonzero(columns["kind"] == Kind.MODULE_ENTER)
    calls = _own_call(columns["subject"][enters], enters, module, rows)
    call = np.where(phase == Phase.FORWARD, calls, -1)
    by_module = np.lexsort((rows, step, module))
    rows, module, step, phase, call = (each[by_module] for each in (rows, module, step, phase, call))
    place = np.argsort(
        np.argsort(rows)
    )  # operators that follow each other here follow each other in the program
    same = (module[1:] == module[:-1]) & (step[1:] == step[:-1]) & (phase[1:] == phase[:-1])
    is_next = np.where(phase[1:] == Phase.FORWARD, call[1:] == call[:-1], place[1:] == place[:-1] + 1)
    begins = np.flatnonzero(np.append(True, ~(same & is_next)))
    lasts = np.append(begins[1:], len(rows)) - 1
    is_again = is_recomputed(recording)
    again = set(zip(module[is_again[rows]].tolist(), step[is_again[rows]].tolist(), strict=True))
    stretches: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for a, b in zip(begins.tolist(), lasts.tolist(), strict=True):
        key = int(module[a]), int(step[a])
        forward, backward = stretches.setdefault(key, ([], []))
        if phase[a] == Phase.BACKWARD:
            backward.append(int(rows[a]))
        elif key not in again or is_again[rows[b]]:
            forward.append(int(rows[b]))
    return {pair for forward, backward in stretches.values() for pair in _matched(forward, backward)}


def _own_call(entered: np.ndarray, enters: np.ndarray, module: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the module call that each operator runs in: the last entry into its module before it."""
    n_rows = int(max(enters.max(initial=0), rows.max(initial=0))) + 1
    keys = np.sort(entered.astype(np.int64) * n_rows + enters)
    return np.searchsorted(keys, module * n_rows + rows)


def _matched(forward: list[int], backward: list[int]) -> Iterator[tuple[int, int]]:
    if forward and backward and len(backward) % len(forward) == 0:
        each = len(backward) // len(forward)
        pairs = zip(forward, backward[::each], strict=True)
        yield from ((a, b) for a, b in pairs if a < b)
        return
    used = -1
    for b in backward:
        nearest = bisect_left(forward, b) - 1
        if nearest >= 0 and forward[nearest] > used:
            used = forward[nearest]
            yield used, b
