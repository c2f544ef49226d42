"""Host, streams and communication of a rank as slices, one after the other on each track.

    RankTimeline ──> when each element held its lane ──> tracks without overlaps ──> LaneSlices

Slices that overlap on one lane (two transfers of one group) get a second track below the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from windtunnel.cluster.program import LaneKind, RankTimeline, Work
from windtunnel.report.trace.labels import ElementLabels
from windtunnel.report.trace.model import Slices, Track, join_slices, to_ns

__all__ = [
    "COMMUNICATION_ORDER",
    "HOST_ORDER",
    "PER_LANE",
    "STREAM_ORDER",
    "TIMED",
    "LaneSlices",
    "host_spans",
    "lane_slices",
]

TIMED = (Work.KERNEL, Work.COLLECTIVE, Work.SEND, Work.RECEIVE)  # they do not run on the host
PER_LANE = 100  # tracks per lane, for overlapping slices
HOST_ORDER, STREAM_ORDER, COMMUNICATION_ORDER = 1_000, 100_000, 10_000_000
_JITTER_NS = 2  # summing the same seconds in another order differs by less
_NEVER_WAIT = (Work.KERNEL, Work.HOST, Work.RECORD_EVENT, Work.STEP)
_NO_SLICE = -1


@dataclass(frozen=True)
class LaneSlices:
    """Slices, and where each element of the program is found among them."""

    tracks: tuple[Track, ...]
    slices: Slices
    host_slice: np.ndarray  # of each element: index into `slices`, or -1
    device_slice: np.ndarray  # on its stream or the network


def host_spans(timeline: RankTimeline) -> tuple[np.ndarray, np.ndarray]:
    """Return when the host was busy with each element: issuing it, running it, or waiting."""
    work, start = timeline.program.work, timeline.issued
    end = start + timeline.program.host_seconds
    # A waiting host continues when it issues the next element.
    onward = np.append(start[1:], end[-1:])
    end = np.where(np.isin(work, _NEVER_WAIT), end, np.maximum(end, onward))
    own = _is_own(timeline)
    return to_ns(start), to_ns(np.where(own, np.maximum(end, timeline.end), end))


def lane_slices(timeline: RankTimeline, chosen: np.ndarray, labels: ElementLabels) -> LaneSlices:
    """Slices of the chosen elements (a mask)."""
    program = timeline.program
    builder = _Builder(timeline.rank, len(program))
    host_start, host_end = host_spans(timeline)
    own = _is_own(timeline)
    elements = np.flatnonzero(chosen & ((host_end > host_start) | own))
    label = np.zeros(len(elements), np.int32)
    for mask, give in ((own[elements], labels.device), (~own[elements], labels.host)):
        label[mask] = give(elements[mask])
    held = _Held(elements, host_start[elements], host_end[elements], label)
    builder.add_lane("host", HOST_ORDER, held, builder.host_slice)
    builder.device_slice[own] = builder.host_slice[own]
    # Elements that take no host time were issued as part of the one before.
    np.maximum.accumulate(builder.host_slice, out=builder.host_slice)
    is_timed = np.isfinite(timeline.start) & np.isfinite(timeline.end)
    for number, lane in sorted(enumerate(timeline.lanes), key=lambda pair: (pair[1].kind, pair[0])):
        if lane.kind == LaneKind.HOST:
            continue
        elements = np.flatnonzero(chosen & (timeline.lane == number) & is_timed)
        start, end = to_ns(timeline.start[elements]), to_ns(timeline.end[elements])
        held = _Held(elements, start, end, labels.device(elements))
        order = STREAM_ORDER + number * PER_LANE
        if lane.kind == LaneKind.COMMUNICATION:
            order += COMMUNICATION_ORDER - STREAM_ORDER
            ready = np.minimum(to_ns(timeline.ready[elements]), start)
            held = replace(held, ready=ready, wait_label=labels.waiting(elements))
        elif not program.is_synchronous:
            held = held + _stalls(timeline, lane.number, chosen, labels)
        builder.add_lane(lane.name, order, held, builder.device_slice)
    return builder.finish()


def _stalls(timeline: RankTimeline, stream: int, chosen: np.ndarray, labels: ElementLabels) -> _Held:
    """Return when a stream was idle because of the network or another stream; no element has a slice there."""
    stalls = timeline.stalls
    start, end = to_ns(stalls.start), to_ns(stalls.end)
    here = np.flatnonzero((stalls.stream == stream) & chosen[stalls.element] & (end > start))
    start, end = start[here], end[here]
    return _Held(np.full(len(here), _NO_SLICE), start, end, labels.stalled(stalls.cause[here]))


def _is_own(timeline: RankTimeline) -> np.ndarray:
    """Return which elements are kernels that run on the host itself."""
    is_host = np.array([*(lane.kind == LaneKind.HOST for lane in timeline.lanes), False], bool)
    is_known = (timeline.lane >= 0) & (timeline.lane < len(timeline.lanes))
    is_there = is_host[np.where(is_known, timeline.lane, len(timeline.lanes))]
    is_kernel = timeline.program.work == Work.KERNEL
    return is_there & is_kernel & np.isfinite(timeline.start) & np.isfinite(timeline.end)


@dataclass(frozen=True)
class _Held:
    """When elements occupied a lane. Parallel arrays."""

    elements: np.ndarray
    start: np.ndarray
    end: np.ndarray
    label: np.ndarray
    ready: np.ndarray | None = None  # before their start: they waited for peers
    wait_label: np.ndarray | None = None

    def __add__(self, others: _Held) -> _Held:
        names = ("elements", "start", "end", "label")
        return _Held(*(np.concatenate([getattr(self, name), getattr(others, name)]) for name in names))

    def __getitem__(self, which: np.ndarray) -> _Held:
        ready = None if self.ready is None else self.ready[which]
        wait_label = None if self.wait_label is None else self.wait_label[which]
        return _Held(
            self.elements[which], self.start[which], self.end[which], self.label[which], ready, wait_label
        )


class _Builder:
    def __init__(self, rank: int, n_elements: int) -> None:
        self.rank = rank
        self.tracks: list[Track] = []
        self.parts: list[Slices] = []
        self.n_slices = 0
        self.host_slice = np.full(n_elements, _NO_SLICE, np.int64)
        self.device_slice = np.full(n_elements, _NO_SLICE, np.int64)

    def add_lane(self, name: str, order: int, held: _Held, where: np.ndarray) -> None:
        """Put them on as many tracks as needed, and store in `where` the slice of each element."""
        held = held[np.lexsort((held.elements, held.start))]
        held = replace(held, end=_without_jitter(held.start, np.maximum(held.start, held.end)))
        place = _places(held.start, held.end)
        for k in range(int(place.max()) + 1 if len(place) else 0):
            mine = held[np.flatnonzero(place == k)]
            part = _slices(len(self.tracks), mine.start, mine.end, mine.label)
            position = np.arange(len(part))
            if mine.ready is not None and mine.wait_label is not None:
                part, position = _with_waits(part, mine.ready, mine.wait_label)
            self.tracks.append(Track(self.rank, name if k == 0 else f"{name} ({k + 1})", order + k))
            is_found = mine.elements >= 0
            where[mine.elements[is_found]] = self.n_slices + position[is_found]
            self.parts.append(part)
            self.n_slices += len(part)

    def finish(self) -> LaneSlices:
        return LaneSlices(tuple(self.tracks), join_slices(self.parts), self.host_slice, self.device_slice)


def _slices(track: int, start: np.ndarray, end: np.ndarray, label: np.ndarray) -> Slices:
    n = len(start)
    return Slices(
        np.full(n, track, np.int32), start, end, label.astype(np.int32), np.ones(n, np.int32), end - start
    )


def _with_waits(work: Slices, ready: np.ndarray, label: np.ndarray) -> tuple[Slices, np.ndarray]:
    """Return the slices with waiting slices inserted before them, and the new positions of the old ones."""
    free = np.zeros(len(work), np.int64)
    free[1:] = work.end_ns[:-1]
    free[:1] = ready[:1]
    # It may be ready while the previous transfer still occupies the lane: until then it waits for that, not for its peers.
    begins = np.maximum(ready, free)
    has_wait = np.flatnonzero(begins < work.start_ns)
    waits = _slices(int(work.track[0]), begins[has_wait], work.start_ns[has_wait], label[has_wait])
    both = join_slices([waits, work])
    order = np.argsort(np.concatenate([2 * has_wait, 2 * np.arange(len(work)) + 1]), kind="stable")
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    moved = Slices(*(getattr(both, name)[order] for name in Slices.__dataclass_fields__))
    return moved, position[len(waits) :]


def _without_jitter(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    if len(start) < 2:
        return end
    over = end[:-1] - start[1:]
    clipped = np.where((over > 0) & (over <= _JITTER_NS), np.maximum(start[1:], start[:-1]), end[:-1])
    return np.append(clipped, end[-1])


def _places(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the track of each slice: 0 for the first track of a lane, 1 if it needs a second, and so on."""
    place = np.zeros(len(start), np.int64)
    if len(start) < 2 or bool((np.maximum.accumulate(end)[:-1] <= start[1:]).all()):
        return place
    free: list[int] = []  # when each track is free again
    for i, (begin, until) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        k = next((k for k, time in enumerate(free) if time <= begin), len(free))
        if k == len(free):
            free.append(until)
        free[k] = until
        place[i] = k
    return place
