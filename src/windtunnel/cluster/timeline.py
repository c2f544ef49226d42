"""When everything happens: a discrete-event simulation of all ranks of a job together.

    Representatives ──> hosts issue, streams execute, a collective starts when its last rank is ready ──> RankTimeline each

A host goes through its program and blocks only where the real one would: when it reads a value or synchronises. Work
that it issues waits in the queue of a stream until the stream is free and its dependencies are done, as on a device.
All durations are given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np

from windtunnel.cluster.program import RankTimeline, Stalls, StepProgram, Work
from windtunnel.cluster.runs import Call, ProgramRuns, Run, runs_of
from windtunnel.cluster.timeline_ranks import (
    Representative,
    Representatives,
    SharedGroup,
    representatives_of,
)

__all__ = ["WorldTimeline", "replay_world"]

_COLLECTIVE, _SEND, _RECEIVE = int(Work.COLLECTIVE), int(Work.SEND), int(Work.RECEIVE)
_WAIT, _SYNC = int(Work.WAIT), int(Work.SYNC)
_RECORD_EVENT, _WAIT_EVENT = int(Work.RECORD_EVENT), int(Work.WAIT_EVENT)
_RUN, _JOIN, _SIGNAL, _AWAIT = range(4)  # kinds of queue entries
_RUN_FIELDS = len(Run._fields)
_TURN = 256  # items a host issues before others go on: a host far ahead would fill its queues and memory
_NEVER = (nan, nan, nan)


@dataclass(frozen=True)
class WorldTimeline:
    """The timelines of all representatives, on one clock."""

    ranks: Mapping[int, RankTimeline]
    image: Mapping[int, int]  # every known rank -> its representative
    n_unmet: int  # calls whose peers never made them: they were released when nothing else could go on
    n_alone: int  # sends and receives whose other end was not simulated
    is_exact: bool = True  # False: there are too many kinds of ranks to keep apart, see `Representatives`


def replay_world(
    programs: Mapping[int, StepProgram], representative: Mapping[int, int], world_size: int
) -> WorldTimeline:
    """Simulate every program to its end, with the ranks waiting for each other as they would."""
    chosen = representatives_of(programs, representative, world_size)
    world = _World(chosen)
    world.run()
    ranks = {rank.representative.rank: rank.timeline() for rank in world.ranks}
    return WorldTimeline(ranks, chosen.image, world.n_unmet, world.n_alone, chosen.is_exact)


class _Signal:
    """A point in time that may not be known yet."""

    __slots__ = ("cause", "time", "waiting")

    def __init__(self, time: float | None = None, cause: int = -1) -> None:
        self.time = time
        self.cause = cause  # element of the communication that sets it, in the program of the waiting rank
        self.waiting: tuple[_Stream | _WaitingStream | _WaitingHost, ...] = ()


class _Arrival(NamedTuple):
    """A rank that is ready for a call."""

    rank: _Rank
    call: Call
    time: float
    done: _Signal


class _Stream:
    """A queue of work that is executed in order."""

    __slots__ = ("cause", "is_blocked", "number", "queue", "rank", "time")

    def __init__(self, rank: _Rank, number: int) -> None:
        self.rank, self.number = rank, number
        self.time = 0.0
        self.cause = -1  # element of the communication that this stream last waited for
        self.is_blocked = False
        self.queue: deque[tuple[int, Any, float, Any]] = deque()

    def put(self, kind: int, item: Any, issued: float, what: Any) -> None:
        if self.is_blocked or self.queue:
            self.queue.append((kind, item, issued, what))
        else:
            self.rank.do(self, kind, item, issued, what)

    def advance(self) -> None:
        while self.queue and not self.is_blocked:
            self.rank.do(self, *self.queue.popleft())

    def wake(self, signal: _Signal) -> _Stream:
        """A call on this communication lane has ended."""
        self.is_blocked = False
        self.time = signal.time  # type: ignore[assignment]
        return self


class _World:
    """The state of the simulation: all ranks, and the calls that wait for some of them."""

    def __init__(self, chosen: Representatives) -> None:
        n_callers: dict[SharedGroup, int] = {}
        for rank in chosen.ranks:
            for group in set(rank.groups):
                n_callers[group] = n_callers.get(group, 0) + 1
        self._n_callers = n_callers
        self._open: dict[tuple[Any, ...], list[_Arrival]] = {}  # calls that wait for a rank
        self.ready: deque[_Rank | _Stream] = deque()
        self.n_unmet = self.n_alone = 0
        runs: dict[int, ProgramRuns] = {}  # by program: several ranks may share one
        for program in {id(rank.program): rank.program for rank in chosen.ranks}.values():
            runs[id(program)] = runs_of(program)
        self.ranks = [_Rank(rank, runs[id(rank.program)], self) for rank in chosen.ranks]

    def run(self) -> None:
        self.ready.extend(self.ranks)
        while True:
            while self.ready:
                self.ready.popleft().advance()
            if not self._open:
                return
            self._release_earliest()

    def n_callers(self, group: SharedGroup) -> int:
        return self._n_callers[group]

    def arrive(self, key: tuple[Any, ...], group: SharedGroup | None, arrival: _Arrival) -> None:
        """A rank is ready for a call; the call starts when all are."""
        arrivals = self._open.setdefault(key, [])
        arrivals.append(arrival)
        if len(arrivals) >= (2 if group is None else self._n_callers[group]):
            self._start(self._open.pop(key))

    def _start(self, arrivals: list[_Arrival]) -> None:
        start = max(arrival.time for arrival in arrivals)
        end = start + max(arrival.call.seconds for arrival in arrivals)
        for rank, call, time, signal in arrivals:
            rank.call_times[call.number] = time, start, end
            self.set_time(signal, end)

    def set_time(self, signal: _Signal, time: float) -> None:
        signal.time = time
        for waiting in signal.waiting:
            self.ready.append(waiting.wake(signal))
        signal.waiting = ()

    def _release_earliest(self) -> None:
        """No rank can go on: release the earliest incomplete call, so that the simulation ends."""
        key = min(self._open, key=lambda key: min(arrival.time for arrival in self._open[key]))
        self.n_unmet += 1
        self._start(self._open.pop(key))


class _Rank:
    """The host and the streams of one representative."""

    def __init__(self, representative: Representative, runs: ProgramRuns, world: _World) -> None:
        self.representative, self._runs, self._world = representative, runs, world
        self._is_synchronous = representative.program.is_synchronous
        self._cursor = 0
        self._time = 0.0
        self._n_awaited = 0
        self._streams = {number: _Stream(self, number) for number in runs.stream_lanes}
        self._channels: dict[int, _Stream] = {}  # of communication, by lane
        self._signals: dict[int, _Signal] = {}  # of asynchronous calls, by their id
        self._events: dict[int, _Signal] = {}
        self._began, self._free = [0.0] * runs.n_runs, [-inf] * runs.n_runs
        self._issued = [0.0] * len(runs.calls)
        self.call_times = [_NEVER] * len(runs.calls)  # ready, start, end of communication
        self.stalls: list[tuple[int, int, float, float, int]] = []

    # -- the host -----------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Go through the program until the host has to wait or its turn ends."""
        if self._n_awaited:
            return
        items: tuple[Any, ...] = self._runs.items  # a Run or a Call: length is the cheapest test
        streams, began, time = self._streams, self._began, self._time
        first, self._cursor = self._cursor, min(self._cursor + _TURN, len(items))
        for at in range(first, self._cursor):
            item = items[at]
            if len(item) == _RUN_FIELDS:
                index, number, host_seconds, busy, late = item
                began[index] = time
                if number >= 0:
                    stream = streams[number]
                    if stream.is_blocked or stream.queue:
                        stream.queue.append((_RUN, item, time, None))
                    else:
                        self._free[index] = stream.time
                        stream.time = max(stream.time + busy, time + late)
                time += host_seconds
            else:
                self._issued[item.number] = time
                self._time = time + item.host_seconds
                self._do(item)
                time = self._time
                if self._n_awaited:
                    self._cursor = at + 1
                    return
        self._time = time
        if first < self._cursor < len(items):
            self._world.ready.append(self)

    def woken(self, signal: _Signal, element: int) -> None:
        self._n_awaited -= 1
        self._host_waits(signal, element)

    def _do(self, call: Call) -> None:
        work, stream = call.work, call.stream
        if work in (_COLLECTIVE, _SEND, _RECEIVE):
            done = self._communicate(call)
            if call.is_async:
                self._signals[call.subject] = done
            else:
                self._await(call, done)
        elif work == _WAIT:
            awaited = self._signals.pop(call.subject, None)
            if awaited is not None:
                self._await(call, awaited)
        elif work == _SYNC:
            all_streams = [*self._streams.values(), *self._channels.values()]
            for each in all_streams if stream < 0 else [self._streams[stream]]:
                self._host_waits(self._position(each), call.element)
        elif work == _RECORD_EVENT:
            self._events[call.subject] = self._position(self._streams[stream])
        elif work == _WAIT_EVENT:
            happened = self._events.get(call.subject)
            if happened is not None:
                self._await(call, happened)

    def _communicate(self, call: Call) -> _Signal:
        """Join the peers, on a lane of its own that first waits for the current work of the call's stream."""
        me, done = self.representative, _Signal(None, call.element)
        group = me.groups[call.group]
        key: tuple[Any, ...]
        if call.work == _COLLECTIVE:
            key, callers = (group, call.sequence), group
        else:
            other = me.peers.get(call.peer)
            ends = (me.rank, other) if call.work == _SEND else (other, me.rank)
            key = (*ends, group.pattern, call.sequence) if other is not None else ()
            callers = None
        channel = self._channels.get(call.lane)
        if channel is None:
            channel = self._channels[call.lane] = _Stream(self, -1)
        is_now = self._is_synchronous or call.stream < 0
        before = _Signal(self._time) if is_now else self._position(self._streams[call.stream])
        channel.put(_AWAIT, call, self._time, before)
        channel.put(_JOIN, call, self._time, (key, callers, done))
        return done

    def _await(self, call: Call, signal: _Signal) -> None:
        """Make the caller wait: its stream, or the host itself (on a CPU, and for stream -1)."""
        if call.stream < 0 or self._is_synchronous:
            self._host_waits(signal, call.element)
        else:
            self._streams[call.stream].put(_AWAIT, call, self._time, signal)

    def _host_waits(self, signal: _Signal, element: int) -> None:
        if signal.time is None:
            self._n_awaited += 1
            signal.waiting += (_WaitingHost(self, element),)
            return
        if self._is_synchronous and signal.time > self._time:
            self.stalls.append((element, 0, self._time, signal.time, signal.cause))
        self._time = max(self._time, signal.time)

    def _position(self, stream: _Stream) -> _Signal:
        """When all work that is now in a stream is done."""
        if not stream.is_blocked and not stream.queue:
            return _Signal(max(stream.time, self._time), stream.cause)
        signal = _Signal()
        stream.queue.append((_SIGNAL, None, self._time, signal))
        return signal

    # -- a stream -----------------------------------------------------------------------------------------

    def do(self, stream: _Stream, kind: int, item: Any, issued: float, what: Any) -> None:
        """Execute the first entry of a queue."""
        if kind == _RUN:
            self._free[item.number] = stream.time
            stream.time = max(stream.time + item.busy, issued + item.late)
        elif kind == _AWAIT:
            self._stream_waits(stream, item.element, issued, what)
        elif kind == _SIGNAL:
            what.cause = stream.cause
            self._world.set_time(what, max(stream.time, issued))
        else:
            self._join(stream, item, *what)

    def _join(
        self, channel: _Stream, call: Call, key: tuple[Any, ...], group: SharedGroup | None, done: _Signal
    ) -> None:
        if key and (group is None or self._world.n_callers(group) > 1):
            channel.is_blocked = True
            done.waiting += (channel,)
            self._world.arrive(key, group, _Arrival(self, call, channel.time, done))
            return
        if not key:  # the peer is unknown: assume that it is ready
            self._world.n_alone += 1
        end = channel.time + call.seconds
        self.call_times[call.number] = channel.time, channel.time, end
        channel.time = end
        self._world.set_time(done, end)

    def _stream_waits(self, stream: _Stream, element: int, issued: float, signal: _Signal) -> None:
        if signal.time is None:
            stream.is_blocked = True
            signal.waiting += (_WaitingStream(stream, element, issued),)
            return
        self.stall(stream, element, issued, signal)

    def stall(self, stream: _Stream, element: int, issued: float, signal: _Signal) -> None:
        before = max(stream.time, issued)
        if signal.time > before:  # type: ignore[operator]
            stream.time, stream.cause = signal.time, signal.cause  # type: ignore[assignment]
            if stream.number >= 0:
                self.stalls.append((element, stream.number, before, signal.time, signal.cause))  # type: ignore[arg-type]
        else:
            stream.time = before

    def timeline(self) -> RankTimeline:
        program, runs = self.representative.program, self._runs
        began, free = np.array(self._began), np.array(self._free)
        issued = runs.issued(began)
        issued[runs.calls] = self._issued
        ready, start, end = (np.full(len(program), np.nan) for _ in range(3))
        kernels, start[kernels], end[kernels] = runs.kernels(began, free)
        ready[kernels] = start[kernels]
        if self.call_times:
            ready[runs.calls], start[runs.calls], end[runs.calls] = np.array(self.call_times).T
        is_step = program.work == Work.STEP
        done = np.fmax.accumulate(np.fmax(end, issued))[is_step] if is_step.any() else np.zeros(0)
        columns = list(zip(*sorted(self.stalls), strict=True)) if self.stalls else [()] * 5
        types = (np.int64, np.int32, np.float64, np.float64, np.int64)
        stalls = Stalls(*(np.array(c, t) for c, t in zip(columns, types, strict=True)))
        return RankTimeline(
            self.representative.rank, program, runs.lanes, runs.lane, issued, start, end, ready, stalls, done
        )


class _WaitingStream:
    """A stream that waits for a signal."""

    __slots__ = ("_element", "_issued", "_stream")

    def __init__(self, stream: _Stream, element: int, issued: float) -> None:
        self._stream, self._element, self._issued = stream, element, issued

    def wake(self, signal: _Signal) -> _Stream:
        self._stream.is_blocked = False
        self._stream.rank.stall(self._stream, self._element, self._issued, signal)
        return self._stream


class _WaitingHost:
    """A host that waits for a signal."""

    __slots__ = ("_element", "_rank")

    def __init__(self, rank: _Rank, element: int) -> None:
        self._rank, self._element = rank, element

    def wake(self, signal: _Signal) -> _Rank:
        self._rank.woken(signal, self._element)
        return self._rank
