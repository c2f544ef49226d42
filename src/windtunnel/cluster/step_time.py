"""Where the time of a step goes, on every rank.

    WorldTimeline ──> last step of each rank: kernels, exposed communication, waiting for peers and host ──> WorldTime

Time is attributed to the busiest stream. Work of other streams and of the network is hidden behind it, and counts only
as far as the busiest stream stalls for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from windtunnel.cluster.mesh_axes import axis_label
from windtunnel.cluster.program import LaneKind, RankTimeline, Work
from windtunnel.cluster.timeline import WorldTimeline

__all__ = ["RankTime", "WorldTime", "step_window", "time_of"]


@dataclass(frozen=True)
class RankTime:
    """One rank's steady step, in seconds. The parts add up to `step_seconds`."""

    rank: int
    step_seconds: float
    compute_seconds: float  # kernels on the busiest stream
    # axis -> transfers that nothing overlaps
    exposed_seconds: dict[str, float] = field(default_factory=dict)
    # axis -> waiting for slower ranks to reach a collective
    peers_seconds: dict[str, float] = field(default_factory=dict)
    bubble_seconds: float = 0.0  # waiting for another stage: for its send, receive or collective
    streams_seconds: float = 0.0  # waiting for kernels of other streams
    host_seconds: float = 0.0  # the host had not issued anything yet
    network_seconds: dict[str, float] = field(default_factory=dict)  # axis -> transfers, hidden or not

    @property
    def waiting_for_others(self) -> float:
        return self.bubble_seconds + sum(self.peers_seconds.values())


@dataclass(frozen=True)
class WorldTime:
    """The whole job."""

    step_seconds: float  # steady: the median of the steps after the first
    warm_up_seconds: (
        float | None
    )  # the first step, with one-time work and allocations; None: there is only one step
    all_steps: tuple[float, ...]
    ranks: dict[int, RankTime]  # the simulated ranks
    n_steps: int = 0  # optimizer steps that all ranks made; 0: the whole program counts as one

    @property
    def bubble_share(self) -> float:
        """The part of the step, over all simulated ranks, spent waiting for another stage."""
        whole = sum(rank.step_seconds for rank in self.ranks.values())
        return sum(rank.bubble_seconds for rank in self.ranks.values()) / whole if whole else 0.0

    @property
    def slowest(self) -> RankTime | None:
        """The rank that the others wait for: the one that waits least for others."""
        return max(
            self.ranks.values(), key=lambda r: (r.step_seconds - r.waiting_for_others, -r.rank), default=None
        )


def time_of(world: WorldTimeline) -> WorldTime:
    n_steps = min((len(rank.step_ends) for rank in world.ranks.values()), default=0)
    ends = (
        np.array([rank.step_ends[:n_steps] for rank in world.ranks.values()]).max(axis=0) if n_steps else []
    )
    if not n_steps:  # a program without an optimizer: all of it is one step
        whole = max((_last(rank) for rank in world.ranks.values()), default=0.0)
        ends = np.array([whole])
    steps = np.diff(ends, prepend=0.0)
    steady = float(np.median(steps[1:])) if len(steps) > 1 else float(steps[0])
    warm_up = float(steps[0]) if len(steps) > 1 else None
    ranks = {number: _rank_time(timeline) for number, timeline in world.ranks.items()}
    return WorldTime(steady, warm_up, tuple(steps.tolist()), ranks, n_steps)


def step_window(timeline: RankTimeline) -> tuple[float, float]:
    """When the last step of a rank began and ended."""
    ends = timeline.step_ends
    if not len(ends):
        return 0.0, _last(timeline)
    return (float(ends[-2]) if len(ends) > 1 else 0.0), float(ends[-1])


def _last(timeline: RankTimeline) -> float:
    known = [float(np.nanmax(a)) for a in (timeline.end, timeline.issued) if len(a) and not np.isnan(a).all()]
    return max(known, default=0.0)


def _rank_time(timeline: RankTimeline) -> RankTime:
    first, last = step_window(timeline)
    program = timeline.program
    is_kernel = program.work == Work.KERNEL
    busy = np.where(is_kernel, _overlap(timeline.start, timeline.end, first, last), 0.0)
    by_lane = np.bincount(timeline.lane, weights=busy, minlength=len(timeline.lanes))
    axes = [axis_label(name, ranks) for name, ranks in zip(program.group_names, program.groups, strict=True)]
    stalled = _StallTotals(program.peers)
    stalls = timeline.stalls
    main, number = _main_stream(timeline, by_lane)
    mine = np.flatnonzero(stalls.stream == number)
    for start, end, cause in zip(
        stalls.start[mine].tolist(), stalls.end[mine].tolist(), stalls.cause[mine].tolist(), strict=True
    ):
        start, end = max(start, first), min(end, last)
        if end > start:
            stalled.add(timeline, axes, start, end, cause)
    compute = float(by_lane[main])
    rest = (last - first) - compute - stalled.total
    return RankTime(
        timeline.rank, last - first, compute, _some(stalled.exposed), _some(stalled.peers), stalled.bubble,
        stalled.streams, max(rest, 0.0), _network(timeline, axes, first, last),
    )  # fmt: skip


def _main_stream(timeline: RankTimeline, busy: np.ndarray) -> tuple[int, int]:
    """Lane and number of the busiest stream; if none has kernels, of the one that waits longest."""
    if timeline.program.is_synchronous:
        return 0, 0  # the host does the work itself
    stalls = timeline.stalls
    waiting = {
        n: (stalls.end - stalls.start)[stalls.stream == n].sum() for n in np.unique(stalls.stream).tolist()
    }
    streams = [i for i, lane in enumerate(timeline.lanes) if lane.kind == LaneKind.STREAM]
    main = max(streams, key=lambda i: (busy[i], waiting.get(timeline.lanes[i].number, 0.0)), default=0)
    return main, timeline.lanes[main].number


class _StallTotals:
    """Stalls of a stream, by cause."""

    def __init__(self, stages: tuple[int, ...]) -> None:
        self._stages = frozenset(stages)  # ranks it sends to or receives from
        self.exposed: defaultdict[str, float] = defaultdict(float)
        self.peers: defaultdict[str, float] = defaultdict(float)
        self.bubble = self.streams = self.total = 0.0

    def add(self, timeline: RankTimeline, axes: list[str], start: float, end: float, cause: int) -> None:
        self.total += end - start
        if cause < 0:
            self.streams += end - start
            return
        program = timeline.program
        started, done = timeline.start[cause], timeline.end[cause]
        for_peers = max(0.0, min(end, started) - start)
        in_transfer = max(0.0, min(end, done) - max(start, started))
        axis = axes[program.group[cause]]
        is_of_stages = not self._stages.isdisjoint(program.groups[program.group[cause]])
        if program.work[cause] == Work.COLLECTIVE and not is_of_stages:
            self.peers[axis] += for_peers
        else:
            self.bubble += for_peers
        self.exposed[axis] += in_transfer
        self.streams += (
            end - start - for_peers - in_transfer
        )  # kernels that followed the data on another stream


def _network(timeline: RankTimeline, axes: list[str], first: float, last: float) -> dict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    program = timeline.program
    calls = np.flatnonzero(np.isin(program.work, (Work.COLLECTIVE, Work.SEND, Work.RECEIVE)))
    seconds = _overlap(timeline.start[calls], timeline.end[calls], first, last)
    for group, each in zip(program.group[calls].tolist(), seconds.tolist(), strict=True):
        found[axes[group]] += each
    return _some(found)


def _some(seconds: Mapping[str, float]) -> dict[str, float]:
    """Only the axes with a positive time."""
    return {axis: each for axis, each in seconds.items() if each > 0}


def _overlap(start: np.ndarray, end: np.ndarray, first: float, last: float) -> np.ndarray:
    """Length of the overlap of each interval with a window; 0 for unknown intervals."""
    return np.nan_to_num(np.maximum(np.minimum(end, last) - np.maximum(start, first), 0.0))
