"""When everything happens: all ranks of a job played together, event by event.

    Cast ──> hosts ask, streams do, communication starts when the last rank has come ──> RankTimeline of each player

A host goes through its program and only stops where the real one would: to read a value, or when told to. What it
asks for waits in a stream's queue until the stream is free and what the stream waits for has happened, as on a device.
Nothing is decided here about how long anything takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np

from windtunnel.cluster.cast import Cast, Meeting, Player, cast_of
from windtunnel.cluster.program import RankTimeline, Stalls, StepProgram, Work
from windtunnel.cluster.runs import Call, Run, Score, score_of

__all__ = ["WorldTimeline", "replay_world"]

_COLLECTIVE, _SEND, _RECEIVE = int(Work.COLLECTIVE), int(Work.SEND), int(Work.RECEIVE)
_WAIT, _SYNC = int(Work.WAIT), int(Work.SYNC)
_RECORD_EVENT, _WAIT_EVENT = int(Work.RECORD_EVENT), int(Work.WAIT_EVENT)
_RUN, _JOIN, _SIGNAL, _AWAIT = range(4)  # what stands in a queue
_RUN_FIELDS = len(Run._fields)
_TURN = 256  # items; a host that runs far ahead fills its queues and memory
_NEVER = (nan, nan, nan)


@dataclass(frozen=True)
class WorldTimeline:
    """All players, on one clock."""

    ranks: Mapping[int, RankTimeline]
    image: Mapping[int, int]  # every known rank -> the player that stands for it
    n_unmet: int  # calls whose peers never came: they were let through when nothing else could go on
    n_alone: int  # sends and receives whose other end was not simulated
    is_exact: bool = True  # False: more kinds of ranks than are told apart, see `Cast`


def replay_world(
    programs: Mapping[int, StepProgram], representative: Mapping[int, int], world_size: int
) -> WorldTimeline:
    """Play every program to its end, the ranks waiting for each other as they would."""
    cast = cast_of(programs, representative, world_size)
    stage = _Stage(cast)
    stage.play()
    ranks = {rank.player.rank: rank.timeline() for rank in stage.ranks}
    return WorldTimeline(ranks, cast.image, stage.n_unmet, stage.n_alone, cast.is_exact)


class _Signal:
    """A moment that may not be known yet."""

    __slots__ = ("cause", "time", "waiting")

    def __init__(self, time: float | None = None, cause: int = -1) -> None:
        self.time = time
        self.cause = cause  # element of the communication it comes from, in the program of whoever waits
        self.waiting: tuple[_Stream | _Rest | _Nap, ...] = ()


class _Comer(NamedTuple):
    """A player that is ready for a call."""

    rank: _Rank
    call: Call
    time: float
    done: _Signal


class _Stream:
    """A queue of work of which one thing runs at a time."""

    __slots__ = ("cause", "is_blocked", "number", "queue", "rank", "time")

    def __init__(self, rank: _Rank, number: int) -> None:
        self.rank, self.number = rank, number
        self.time = 0.0
        self.cause = -1  # the communication that this stream last waited for
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
        """A call it took part in ended."""
        self.is_blocked = False
        self.time = signal.time  # type: ignore[assignment]
        return self


class _Stage:
    """Everything that is going on."""

    def __init__(self, cast: Cast) -> None:
        wanted: dict[Meeting, int] = {}
        for player in cast.players:
            for meeting in set(player.meetings):
                wanted[meeting] = wanted.get(meeting, 0) + 1
        self._wanted = wanted
        self._open: dict[tuple[Any, ...], list[_Comer]] = {}  # calls that wait for somebody
        self.ready: deque[_Rank | _Stream] = deque()
        self.n_unmet = self.n_alone = 0
        scores: dict[int, Score] = {}  # by program: several players may have one
        for program in {id(player.program): player.program for player in cast.players}.values():
            scores[id(program)] = score_of(program)
        self.ranks = [_Rank(player, scores[id(player.program)], self) for player in cast.players]

    def play(self) -> None:
        self.ready.extend(self.ranks)
        while True:
            while self.ready:
                self.ready.popleft().advance()  # type: ignore[union-attr]
            if not self._open:
                return
            self._let_through()

    def n_wanted(self, meeting: Meeting) -> int:
        return self._wanted[meeting]

    def arrive(self, key: tuple[Any, ...], meeting: Meeting | None, comer: _Comer) -> None:
        """A player is ready for a call; the call starts when all are."""
        gathering = self._open.setdefault(key, [])
        gathering.append(comer)
        if len(gathering) >= (2 if meeting is None else self._wanted[meeting]):
            self._start(self._open.pop(key))

    def _start(self, gathering: list[_Comer]) -> None:
        start = max(comer.time for comer in gathering)
        end = start + max(comer.call.seconds for comer in gathering)
        for rank, call, time, signal in gathering:
            rank.met[call.index] = time, start, end
            self.happen(signal, end)

    def happen(self, signal: _Signal, time: float) -> None:
        signal.time = time
        for waiting in signal.waiting:
            self.ready.append(waiting.wake(signal))
        signal.waiting = ()

    def _let_through(self) -> None:
        """Nobody can go on: the first that waits in vain goes on alone, so that there is an end."""
        key = min(self._open, key=lambda key: min(comer.time for comer in self._open[key]))
        self.n_unmet += 1
        self._start(self._open.pop(key))


class _Rank:
    """A player's host, and its streams."""

    def __init__(self, player: Player, score: Score, stage: _Stage) -> None:
        self.player, self._score, self._stage = player, score, stage
        self._is_synchronous = player.program.is_synchronous
        self._cursor = 0
        self._time = 0.0
        self._n_awaited = 0
        self._streams = {number: _Stream(self, number) for number in score.stream_lanes}
        self._lines: dict[int, _Stream] = {}  # of communication, by lane
        self._signals: dict[int, _Signal] = {}  # of calls to be waited for, by their id
        self._events: dict[int, _Signal] = {}
        self._began, self._free = [0.0] * score.n_runs, [-inf] * score.n_runs
        self._issued = [0.0] * len(score.calls)
        self.met = [_NEVER] * len(score.calls)  # ready, start, end of communication
        self.stalls: list[tuple[int, int, float, float, int]] = []

    # -- the host -----------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Go through the program until the host has to wait, or others have a turn."""
        if self._n_awaited:
            return
        items, streams, began, time = self._score.items, self._streams, self._began, self._time
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
                self._issued[item.index] = time
                self._time = time + item.host_seconds
                self._do(item)
                time = self._time
                if self._n_awaited:
                    self._cursor = at + 1
                    return
        self._time = time
        if first < self._cursor < len(items):
            self._stage.ready.append(self)

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
            done = self._signals.pop(call.subject, None)
            if done is not None:
                self._await(call, done)
        elif work == _SYNC:
            all_streams = [*self._streams.values(), *self._lines.values()]
            for each in all_streams if stream < 0 else [self._streams[stream]]:
                self._host_waits(self._position(each), call.element)
        elif work == _RECORD_EVENT:
            self._events[call.subject] = self._position(self._streams[stream])
        elif work == _WAIT_EVENT:
            happened = self._events.get(call.subject)
            if happened is not None:
                self._await(call, happened)

    def _communicate(self, call: Call) -> _Signal:
        """Join the peers, on a lane of its own that first waits for what the call's stream does now."""
        player, done = self.player, _Signal(None, call.element)
        meeting: Meeting | None = player.meetings[call.group]
        if call.work == _COLLECTIVE:
            key: tuple[Any, ...] = (meeting, call.sequence)
        else:
            other = player.peers.get(call.peer)
            ends = (player.rank, other) if call.work == _SEND else (other, player.rank)
            key = (*ends, meeting.pattern, call.sequence) if other is not None else ()
            meeting = None
        line = self._lines.get(call.lane)
        if line is None:
            line = self._lines[call.lane] = _Stream(self, -1)
        is_now = self._is_synchronous or call.stream < 0
        before = _Signal(self._time) if is_now else self._position(self._streams[call.stream])
        line.put(_AWAIT, call, self._time, before)
        line.put(_JOIN, call, self._time, (key, meeting, done))
        return done

    def _await(self, call: Call, signal: _Signal) -> None:
        """Whoever called waits: its stream, or on a CPU and for stream -1 the host itself."""
        if call.stream < 0 or self._is_synchronous:
            self._host_waits(signal, call.element)
        else:
            self._streams[call.stream].put(_AWAIT, call, self._time, signal)

    def _host_waits(self, signal: _Signal, element: int) -> None:
        if signal.time is None:
            self._n_awaited += 1
            signal.waiting += (_Nap(self, element),)
            return
        if self._is_synchronous and signal.time > self._time:
            self.stalls.append((element, 0, self._time, signal.time, signal.cause))
        self._time = max(self._time, signal.time)

    def _position(self, stream: _Stream) -> _Signal:
        """When all that stands in a stream now is done."""
        if not stream.is_blocked and not stream.queue:
            return _Signal(max(stream.time, self._time), stream.cause)
        signal = _Signal()
        stream.queue.append((_SIGNAL, None, self._time, signal))
        return signal

    # -- a stream -----------------------------------------------------------------------------------------

    def do(self, stream: _Stream, kind: int, item: Any, issued: float, what: Any) -> None:
        """What stands first in a queue."""
        if kind == _RUN:
            self._free[item.index] = stream.time
            stream.time = max(stream.time + item.busy, issued + item.late)
        elif kind == _AWAIT:
            self._stream_waits(stream, item.element, issued, what)
        elif kind == _SIGNAL:
            what.cause = stream.cause
            self._stage.happen(what, max(stream.time, issued))
        else:
            self._join(stream, item, *what)

    def _join(
        self, line: _Stream, call: Call, key: tuple[Any, ...], meeting: Meeting | None, done: _Signal
    ) -> None:
        if key and (meeting is None or self._stage.n_wanted(meeting) > 1):
            line.is_blocked = True
            done.waiting += (line,)
            self._stage.arrive(key, meeting, _Comer(self, call, line.time, done))
            return
        if not key:  # nobody is known there: it is taken to be ready
            self._stage.n_alone += 1
        end = line.time + call.seconds
        self.met[call.index] = line.time, line.time, end
        line.time = end
        self._stage.happen(done, end)

    def _stream_waits(self, stream: _Stream, element: int, issued: float, signal: _Signal) -> None:
        if signal.time is None:
            stream.is_blocked = True
            signal.waiting += (_Rest(stream, element, issued),)
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
        program, score = self.player.program, self._score
        began, free = np.array(self._began), np.array(self._free)
        issued = score.issued(began)
        issued[score.calls] = self._issued
        ready, start, end = (np.full(len(program), np.nan) for _ in range(3))
        kernels, start[kernels], end[kernels] = score.kernels(began, free)
        ready[kernels] = start[kernels]
        if self.met:
            ready[score.calls], start[score.calls], end[score.calls] = np.array(self.met).T
        is_step = program.work == Work.STEP
        done = np.fmax.accumulate(np.fmax(end, issued))[is_step] if is_step.any() else np.zeros(0)
        columns = list(zip(*sorted(self.stalls), strict=True)) if self.stalls else [()] * 5
        types = (np.int64, np.int32, np.float64, np.float64, np.int64)
        stalls = Stalls(*(np.array(c, t) for c, t in zip(columns, types, strict=True)))
        return RankTimeline(
            self.player.rank, program, score.lanes, score.lane, issued, start, end, ready, stalls, done
        )


class _Rest:
    """A stream that waits for a signal."""

    __slots__ = ("_element", "_issued", "_stream")

    def __init__(self, stream: _Stream, element: int, issued: float) -> None:
        self._stream, self._element, self._issued = stream, element, issued

    def wake(self, signal: _Signal) -> _Stream:
        self._stream.is_blocked = False
        self._stream.rank.stall(self._stream, self._element, self._issued, signal)
        return self._stream


class _Nap:
    """A host that waits for a signal."""

    __slots__ = ("_element", "_rank")

    def __init__(self, rank: _Rank, element: int) -> None:
        self._rank, self._element = rank, element

    def wake(self, signal: _Signal) -> _Rank:
        self._rank.woken(signal, self._element)
        return self._rank
