"""Modules, steps and phases as slices, in the time of the host or of a stream.

    MODULE_ENTER / EXIT rows ──────────────> calls (spans of rows, nested) ──┐
    module of each backward operator ──────> runs of one module, nested ─────┼──> slices in a lane's own time
    phase and step of each operator ───────> runs of one phase in a step ────┘

On a lane, a span of rows covers the time from the start of its first operator to the end of its last. Spans that are
nested or disjoint in rows are so in time too, because a lane runs one operator after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from windtunnel.events.model import Kind, Phase, Recording
from windtunnel.events.recomputation import is_recomputed
from windtunnel.memory.lifetime import steps_of
from windtunnel.memory.phases import AFTER_BACKWARD, phases_of

__all__ = ["RECOMPUTE", "LaneTime", "RowSpans", "module_spans", "phase_name", "phase_spans", "spans_in_time"]

RECOMPUTE = len(Phase)  # a forward pass that autograd runs again: a number after those of the phases
_DEEPEST = 64  # names come from files: a name with a million dots must not make a million prefixes


@dataclass(frozen=True)
class LaneTime:
    """When a lane was busy with each row it works on. Sorted by row; slices do not overlap."""

    row: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray

    @classmethod
    def of(cls, row: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> LaneTime:
        order = np.argsort(row, kind="stable")
        start = np.maximum.accumulate(start_ns[order]) if len(row) else start_ns
        end = np.maximum.accumulate(np.maximum(end_ns[order], start)) if len(row) else end_ns
        # Overlapping elements are cut where the next one starts: only the order matters here.
        end = np.append(np.minimum(end[:-1], start[1:]), end[-1:])
        return cls(row[order], start, end)


@dataclass(frozen=True)
class RowSpans:
    """Spans of rows with a name, nested or disjoint; an outer span comes first. Parallel arrays."""

    first: np.ndarray  # row
    end: np.ndarray  # row after the last
    name: np.ndarray  # index into `Recording.names`; for phases and steps a number of their own
    phase: np.ndarray


def module_spans(recording: Recording, rows: np.ndarray) -> RowSpans:
    """Calls of modules, and runs of the backward operators (among `rows`) of one module.

    A run of `layers.3.mlp` lies in a run of `layers.3` if the program ever called that: backward has no calls of
    its own, so the tree is that of the names.
    """
    spans, outside = _calls(recording, is_recomputed(recording))
    spans += _backward_runs(
        recording, rows[np.isin(recording.columns["phase"][rows], Phase.BACKWARD)], outside
    )
    spans.sort(key=lambda span: (span[0], -span[1]))
    table = np.array(spans, np.int64).reshape(-1, 4)
    return RowSpans(table[:, 0], table[:, 1], table[:, 2], table[:, 3])


def phase_spans(recording: Recording, rows: np.ndarray) -> tuple[RowSpans, RowSpans]:
    """Steps (named by their number) and the phases in them, of the operators at `rows`."""
    empty = np.zeros(0, np.int64)
    if len(rows) == 0:
        return RowSpans(empty, empty, empty, empty), RowSpans(empty, empty, empty, empty)
    step = steps_of(recording, rows)
    phase = phases_of(recording, rows)
    phase[is_recomputed(recording)[rows]] = RECOMPUTE
    return _runs(rows, step, phase * 0 - 1), _runs(rows, step * 256 + phase, phase)


def phase_name(phase: int) -> str:
    """forward, backward, optimizer, build, recompute, after backward."""
    if phase == AFTER_BACKWARD:
        return "after backward"
    return "recompute" if phase == RECOMPUTE else Phase(phase).name.lower()


def spans_in_time(spans: RowSpans, lane: LaneTime) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the spans that take any time on a lane, with their start and end."""
    first = np.searchsorted(lane.row, spans.first)
    last = np.searchsorted(lane.row, spans.end) - 1
    kept = np.flatnonzero(last >= first)
    start, end = lane.start_ns[first[kept]], lane.end_ns[last[kept]]
    takes_time = end > start
    return kept[takes_time], start[takes_time], end[takes_time]


def _runs(rows: np.ndarray, key: np.ndarray, phase: np.ndarray) -> RowSpans:
    begins = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    ends = np.append(rows[begins[1:]], rows[-1] + 1)
    return RowSpans(rows[begins], ends, key[begins], phase[begins])


def _calls(recording: Recording, is_again: np.ndarray) -> tuple[list[tuple[int, int, int, int]], np.ndarray]:
    """Return the spans of module calls, and the boundaries of the rows outside any call."""
    columns = recording.columns
    kinds = columns["kind"]
    borders = np.flatnonzero((kinds == Kind.MODULE_ENTER) | (kinds == Kind.MODULE_EXIT))
    spans: list[tuple[int, int, int, int]] = []
    open_calls: list[tuple[int, int, int]] = []  # row, module, phase
    covered: list[int] = []  # first row, row after the last, first row, ...
    phases = np.where(is_again[borders], RECOMPUTE, columns["phase"][borders])
    lists = (borders, kinds[borders], columns["subject"][borders], phases)
    for row, kind, module, phase in zip(*(each.tolist() for each in lists), strict=True):
        if kind == Kind.MODULE_ENTER:
            if not open_calls:
                covered.append(row)
            open_calls.append((row, module, phase))
        elif any(call[1] == module for call in open_calls):
            # A call that raised has no exit event: it ends with the call around it.
            while True:
                begun, name, begun_phase = open_calls.pop()
                spans.append((begun, row + 1, name, begun_phase))
                if name == module:
                    break
            if not open_calls:
                covered.append(row + 1)
    if open_calls:
        spans += [(row, len(recording), module, phase) for row, module, phase in open_calls]
        covered.append(len(recording))
    return spans, np.array(covered, np.int64)


def _backward_runs(
    recording: Recording, rows: np.ndarray, covered: np.ndarray
) -> list[tuple[int, int, int, int]]:
    border = np.searchsorted(covered, rows, side="right")
    rows, border = (
        rows[border % 2 == 0],
        border[border % 2 == 0],
    )  # operators inside a call belong to that call
    module = recording.columns["module"][rows].astype(np.int64)
    # Gradients are accumulated by operators without a module, among others: they do not end a run.
    rows, border, module = rows[module >= 0], border[module >= 0], module[module >= 0]
    if len(rows) == 0:
        return []
    step = steps_of(recording, rows)
    changed = (module[1:] != module[:-1]) | (border[1:] != border[:-1]) | (step[1:] != step[:-1])
    begins = np.flatnonzero(np.append(True, changed))
    ends = np.append(rows[begins[1:] - 1], rows[-1]) + 1
    is_apart = np.append(
        True, (border[begins[1:]] != border[begins[:-1]]) | (step[begins[1:]] != step[begins[:-1]])
    )
    parents = _parents(recording)
    spans: list[tuple[int, int, int, int]] = []
    open_runs: list[list[int]] = []  # module, first row, row after the last
    lists = (rows[begins], ends, module[begins], is_apart)

    def close(n_kept: int) -> None:
        for name, first, end in open_runs[n_kept:]:
            spans.append((first, end, name, int(Phase.BACKWARD)))
        del open_runs[n_kept:]

    for first, end, name, apart in zip(*(each.tolist() for each in lists), strict=True):
        path = parents(name)
        n_same = 0
        while not apart and n_same < min(len(path), len(open_runs)) and open_runs[n_same][0] == path[n_same]:
            n_same += 1
        close(n_same)
        open_runs += [[each, first, end] for each in path[n_same:]]
        for run in open_runs:
            run[2] = end
    close(0)
    return spans


def _parents(recording: Recording) -> Callable[[int], list[int]]:
    """Return a function from a module to its parents and itself, outermost first."""
    columns = recording.columns
    named = np.unique(columns["subject"][columns["kind"] == Kind.MODULE_ENTER]).tolist()
    index = {recording.name(module): module for module in named}
    found: dict[int, list[int]] = {}

    def path_of(module: int) -> list[int]:
        if module < 0:
            return []
        if module not in found:
            parts = recording.name(module).split(".", _DEEPEST)
            above = (index.get(".".join(parts[:n])) for n in range(1, len(parts)))
            found[module] = [*(each for each in above if each is not None), module]
        return found[module]

    return path_of
