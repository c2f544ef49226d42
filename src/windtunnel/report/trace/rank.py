"""The whole trace of one rank.

    recording, RankTimeline, memory ──> lanes, modules, phases, arrows, counters ──> Trace

Program time is host time: when the host issued the element at or after a row. Kernels, modules and phases are also shown
in the time of their stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from windtunnel.cluster.program import LaneKind, RankTimeline, Work
from windtunnel.events.model import Recording
from windtunnel.memory.analysis import Timeline
from windtunnel.memory.lifetime import steps_of
from windtunnel.report.trace.arrows import BACKWARD, LAUNCH, arrows_between, backward_pairs
from windtunnel.report.trace.labels import ElementLabels, LabelTable
from windtunnel.report.trace.lanes import (
    HOST_ORDER,
    PER_LANE,
    STREAM_ORDER,
    TIMED,
    LaneSlices,
    host_spans,
    lane_slices,
)
from windtunnel.report.trace.model import Arrows, Counter, Label, Slices, Trace, Track, join_slices, to_ns
from windtunnel.report.trace.modules import (
    LaneTime,
    RowSpans,
    module_spans,
    phase_name,
    phase_spans,
    spans_in_time,
)
from windtunnel.report.trace.thin import count_events, only_step, thin

__all__ = ["MAX_EVENTS", "RankTrace", "full_trace", "last_whole_step", "rank_trace"]

MAX_EVENTS = 400_000  # about 80 MB, which every viewer still opens
_PHASE_ORDER = 0
_PHASES = 256


@dataclass(frozen=True)
class RankTrace:
    """A trace, and the slice of each element of the program."""

    trace: Trace
    device_slice: np.ndarray  # index into the slices, -1: not there


def rank_trace(
    recording: Recording,
    timeline: RankTimeline,
    *,
    memory: Timeline | None = None,
    step: int | None = None,
    flops: Sequence[float | None] = (),
    max_events: int = MAX_EVENTS,
) -> Trace:
    """Return all steps, or one; beyond `max_events` the last complete step, thinned if that is not enough."""
    trace = full_trace(recording, timeline, memory, step, flops).trace
    if count_events(trace) <= max_events:
        return trace
    last = last_whole_step(recording, timeline)
    if step is None and last is not None:
        trace = only_step(trace, full_trace(recording, timeline, memory, last, flops).trace, last)
    return thin(trace, max_events)


def full_trace(
    recording: Recording,
    timeline: RankTimeline,
    memory: Timeline | None = None,
    step: int | None = None,
    flops: Sequence[float | None] = (),
) -> RankTrace:
    """Return the whole trace, regardless of its size."""
    program = timeline.program
    chosen = np.ones(len(program), bool)
    if step is not None:
        chosen = steps_of(recording, program.row) == step
    table = LabelTable()
    lanes = lane_slices(timeline, chosen, ElementLabels(recording, timeline, table, flops))
    tracks, parts = list(lanes.tracks), [lanes.slices]
    for track, part in _nested(recording, timeline, chosen, table):
        parts.append(replace(part, track=part.track + len(tracks)))
        tracks.append(track)
    slices = join_slices(parts)
    arrows = (_launches(timeline, lanes), _backwards(recording, timeline, lanes, chosen))
    trace = Trace(
        tuple(tracks),
        tuple(table.labels),
        slices,
        arrows=tuple(each for each in arrows if len(each)),
        counters=_memory_counters(timeline, memory, chosen),
    )
    return RankTrace(trace, lanes.device_slice)


def last_whole_step(recording: Recording, timeline: RankTimeline) -> int | None:
    """Return its number; None if no step ended."""
    program = timeline.program
    ends = np.flatnonzero(program.work == Work.STEP)
    if len(ends) == 0:
        return None
    return int(steps_of(recording, program.row[ends[-1:]])[0])


def _nested(
    recording: Recording, timeline: RankTimeline, chosen: np.ndarray, table: LabelTable
) -> list[tuple[Track, Slices]]:
    """Return steps with their phases, and modules in host time and in the time of each stream."""
    program = timeline.program
    rank = timeline.rank
    host = _lane_time(program.row, *host_spans(timeline), chosen)
    found: list[tuple[Track, Slices]] = []
    modules = module_spans(recording, program.row[chosen & np.isin(program.work, (*TIMED, Work.HOST))])
    streams = []
    for number, lane in enumerate(timeline.lanes):
        if lane.kind == LaneKind.STREAM:
            here = (
                chosen & (timeline.lane == number) & np.isfinite(timeline.start) & np.isfinite(timeline.end)
            )
            here &= program.work == Work.KERNEL
            time = _lane_time(program.row, to_ns(_finite(timeline.start)), to_ns(_finite(timeline.end)), here)
            streams.append((int((time.end_ns - time.start_ns).sum()), number, lane.name, time))
    busiest = max(streams, key=lambda each: each[0], default=(0, 0, "", host))
    shown = busiest[3] if busiest[0] > 0 else host
    found.append((Track(rank, "steps and phases", _PHASE_ORDER, True), _phases(recording, shown, table)))
    found.append(
        (
            Track(rank, "modules, as issued", HOST_ORDER + PER_LANE // 2, True),
            _modules(recording, modules, host, table),
        )
    )
    for _, number, name, time in streams:
        track = Track(rank, f"modules, {name}", STREAM_ORDER + number * PER_LANE + PER_LANE // 2, True)
        found.append((track, _modules(recording, modules, time, table)))
    return [(track, part) for track, part in found if len(part)]


def _modules(recording: Recording, spans: RowSpans, lane: LaneTime, table: LabelTable) -> Slices:
    kept, start, end = spans_in_time(spans, lane)
    distinct, which = np.unique(spans.name[kept] * _PHASES + spans.phase[kept], return_inverse=True)
    labels = []
    for module, phase in zip(*(each.tolist() for each in np.divmod(distinct, _PHASES)), strict=True):
        name = recording.name(module).encode("utf-8", "replace").decode()
        args: dict[str, object] = {"module": name, "phase": phase_name(phase)}
        labels.append(table.add(("module", module, phase), Label(name, "module", args)))
    return _table(start, end, np.array(labels, np.int32)[which])


def _phases(recording: Recording, lane: LaneTime, table: LabelTable) -> Slices:
    steps, phases = phase_spans(recording, lane.row)
    kept, start, end = spans_in_time(steps, lane)
    if len(kept) == 0:
        return _table(start, end, [])
    start = np.append(
        start[:1], end[:-1]
    )  # a step begins where the one before ended, whatever it waits for first
    labels = [
        table.add(("step", number), Label(f"step {number}", "step", {}))
        for number in steps.name[kept].tolist()
    ]
    kept, phase_start, phase_end = spans_in_time(phases, lane)
    names = [phase_name(phase) for phase in phases.phase[kept].tolist()]
    labels += [table.add(("phase", name), Label(name, "phase", {})) for name in names]
    both = _table(np.append(start, phase_start), np.append(end, phase_end), labels)
    order = np.lexsort((np.arange(len(both)), -both.end_ns, both.start_ns))
    return Slices(*(getattr(both, name)[order] for name in Slices.__dataclass_fields__))


def _table(start: np.ndarray, end: np.ndarray, labels: Sequence[int] | np.ndarray) -> Slices:
    n = len(start)
    return Slices(
        np.zeros(n, np.int32), start, end, np.asarray(labels, np.int32), np.ones(n, np.int32), end - start
    )


def _lane_time(row: np.ndarray, start: np.ndarray, end: np.ndarray, here: np.ndarray) -> LaneTime:
    return LaneTime.of(row[here], start[here], end[here])


def _finite(seconds: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(seconds), seconds, 0.0)


def _launches(timeline: RankTimeline, lanes: LaneSlices) -> Arrows:
    elements = np.flatnonzero(lanes.host_slice != lanes.device_slice)
    return arrows_between(LAUNCH, lanes.slices, lanes.host_slice[elements], lanes.device_slice[elements])


def _backwards(recording: Recording, timeline: RankTimeline, lanes: LaneSlices, chosen: np.ndarray) -> Arrows:
    program = timeline.program
    work = lanes.device_slice
    shown = np.flatnonzero(chosen & (work >= 0) & (program.work == Work.KERNEL))
    rows, first = np.unique(program.row[shown], return_index=True)
    forward, backward = backward_pairs(recording, rows)
    at = [work[shown[first[np.searchsorted(rows, each)]]] for each in (forward, backward)]
    return arrows_between(BACKWARD, lanes.slices, *at)


def _memory_counters(
    timeline: RankTimeline, memory: Timeline | None, chosen: np.ndarray
) -> tuple[Counter, ...]:
    """Return bytes over program time. Points at the same host time are moved a nanosecond apart, so that none is lost."""
    program = timeline.program
    if memory is None or len(memory) == 0 or not chosen.any():
        return ()
    order = np.argsort(program.row, kind="stable")
    row, issued = program.row[order], np.maximum.accumulate(to_ns(timeline.issued[order]))
    at = np.searchsorted(row, memory.event)
    first, last = np.flatnonzero(chosen[order])[[0, -1]]
    # The value at the start is that of the last point before it.
    before = max(0, int(np.searchsorted(at, first, side="right")) - 1)
    shown = np.flatnonzero((np.arange(len(at)) >= before) & (at <= last + 1))
    if len(shown) == 0:
        return ()
    done = int(max(issued[last], host_spans(timeline)[1][order[last]]))
    times = np.append(issued, done)[np.clip(at[shown], first, len(row))]
    steps = np.arange(len(shown))
    times = np.maximum.accumulate(np.minimum(times, done) - steps) + steps
    names = ("allocated", memory.allocated_bytes), ("reserved", memory.reserved_bytes)
    return tuple(Counter(timeline.rank, name, "bytes", times, values[shown]) for name, values in names)
