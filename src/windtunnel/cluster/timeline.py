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
from typing import Any

import numpy as np

from windtunnel.cluster.cast import Cast, Meeting, Player, cast_of
from windtunnel.cluster.program import Lane, LaneKind, RankTimeline, Stalls, StepProgram, Work

__all__ = ["WorldTimeline", "replay_world"]

_KERNEL, _HOST, _COLLECTIVE = int(Work.KERNEL), int(Work.HOST), int(Work.COLLECTIVE)
_SEND, _RECEIVE, _WAIT, _SYNC = int(Work.SEND), int(Work.RECEIVE), int(Work.WAIT), int(Work.SYNC)
_RECORD_EVENT, _WAIT_EVENT = int(Work.RECORD_EVENT), int(Work.WAIT_EVENT)
_JOIN, _SIGNAL, _AWAIT = 101, 102, 103  # what else stands in a queue


@dataclass(frozen=True)
class WorldTimeline:
    """All players, on one clock."""

    ranks: Mapping[int, RankTimeline]
    image: Mapping[int, int]  # every known rank -> the player that stands for it
    n_unmet: int  # calls whose peers never came: they were let through when nothing else could go on
    n_alone: int  # sends and receives whose other end was not simulated


def replay_world(
    programs: Mapping[int, StepProgram], representative: Mapping[int, int], world_size: int
) -> WorldTimeline:
    """Play every program to its end, the ranks waiting for each other as they would."""
    cast = cast_of(programs, representative, world_size)
    stage = _Stage(cast)
    stage.play()
    ranks = {rank.player.rank: rank.timeline() for rank in stage.ranks}
    return WorldTimeline(ranks, cast.image, stage.n_unmet, stage.n_alone)


class _Signal:
    """A moment that may not be known yet."""

    __slots__ = ("cause", "time", "waiting")

    def __init__(self, time: float | None = None, cause: int = -1) -> None:
        self.time = time
        self.cause = cause  # element of the communication it comes from, in the program of whoever waits
        self.waiting: list[Any] = []


class _Gathering:
    """One call of a group, until the last player has come."""

    __slots__ = ("comers", "n_wanted", "seconds")

    def __init__(self, n_wanted: int) -> None:
        self.n_wanted = n_wanted
        self.seconds = 0.0
        self.comers: list[tuple[_Rank, int, float, _Signal]] = []


class _Stream:
    """A queue of work of which one thing runs at a time."""

    __slots__ = ("cause", "is_blocked", "lane", "number", "queue", "rank", "time")

    def __init__(self, rank: _Rank, lane: int, number: int) -> None:
        self.rank, self.lane, self.number = rank, lane, number
        self.time = 0.0
        self.cause = -1  # the communication that this stream last waited for
        self.is_blocked = False
        self.queue: deque[tuple[int, int, float, Any]] = deque()

    @property
    def is_free(self) -> bool:
        return not self.is_blocked and not self.queue

    def put(self, item: tuple[int, int, float, Any]) -> None:
        self.queue.append(item)
        if not self.is_blocked:
            self.rank.run(self)

    def advance(self) -> None:
        self.rank.run(self)

    def wake(self, signal: _Signal) -> None:
        """A call it took part in ended."""
        self.is_blocked = False
        self.time = signal.time  # type: ignore[assignment]


class _Stage:
    """Everything that is going on."""

    def __init__(self, cast: Cast) -> None:
        wanted: dict[Meeting, int] = {}
        for player in cast.players:
            for meeting in set(player.meetings):
                wanted[meeting] = wanted.get(meeting, 0) + 1
        self._wanted = wanted
        self._open: dict[tuple[Any, ...], _Gathering] = {}
        self.ready: deque[_Rank | _Stream] = deque()
        self.n_unmet = self.n_alone = 0
        self.ranks = [_Rank(player, self) for player in cast.players]

    def play(self) -> None:
        self.ready.extend(self.ranks)
        while True:
            while self.ready:
                self.ready.popleft().advance()  # type: ignore[union-attr]
            if not self._open:
                return
            self._let_through()

    def arrive(
        self, key: tuple[Any, ...], meeting: Meeting | None, comer: tuple[_Rank, int, float, _Signal]
    ) -> None:
        """A player is ready for a call; the call starts when all are."""
        gathering = self._open.get(key)
        if gathering is None:
            n_wanted = 2 if meeting is None else self._wanted[meeting]
            gathering = self._open[key] = _Gathering(n_wanted)
        gathering.comers.append(comer)
        gathering.seconds = max(gathering.seconds, comer[0].seconds[comer[1]])
        if len(gathering.comers) >= gathering.n_wanted:
            del self._open[key]
            self._start(gathering)

    def _start(self, gathering: _Gathering) -> None:
        start = max(time for _, _, time, _ in gathering.comers)
        end = start + gathering.seconds
        for rank, element, time, signal in gathering.comers:
            rank.ready[element], rank.start[element], rank.end[element] = time, start, end
            self.happen(signal, end)

    def happen(self, signal: _Signal, time: float) -> None:
        signal.time = time
        for waiting in signal.waiting:
            waiting.wake(signal)
            self.ready.append(waiting)
        signal.waiting.clear()

    def _let_through(self) -> None:
        """Nobody can go on: the first that waits in vain goes on alone, so that there is an end."""
        key = min(self._open, key=lambda key: min(comer[2] for comer in self._open[key].comers))
        self.n_unmet += 1
        self._start(self._open.pop(key))


class _Rank:
    """A player's host, and its streams."""

    def __init__(self, player: Player, stage: _Stage) -> None:
        self.player, self._stage = player, stage
        program = player.program
        self._n = len(program)
        self._columns = _lists(program)
        self.seconds: list[float] = self._columns[2]
        self._cursor = 0
        self._time = 0.0
        self._n_awaited = 0
        self.lanes: list[Lane] = [Lane(LaneKind.HOST, "program", -1)]
        self._streams: dict[int, _Stream] = {}
        self._lines: dict[tuple[Any, ...], _Stream] = {}  # of communication
        self._calls: dict[int, _Signal] = {}  # by collective id
        self._events: dict[int, _Signal] = {}
        nan = float("nan")
        self.issued = [0.0] * self._n
        self.start, self.end, self.ready = [nan] * self._n, [nan] * self._n, [nan] * self._n
        self.lane = [0] * self._n
        self.stalls: list[tuple[int, int, float, float, int]] = []

    # -- the host -----------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Go through the program until the host has to wait."""
        if self._n_awaited:
            return
        work, stream, seconds, host_seconds = self._columns[:4]
        issued, start, end, lane = self.issued, self.start, self.end, self.lane
        is_synchronous = self.player.program.is_synchronous
        streams, time = self._streams, self._time
        for i in range(self._cursor, self._n):
            kind = work[i]
            issued[i] = time
            time += host_seconds[i]
            if kind == _KERNEL:
                if is_synchronous:
                    start[i] = time
                    time += seconds[i]
                    end[i] = time
                    continue
                at = streams.get(stream[i]) or self._stream(stream[i])
                lane[i] = at.lane
                if at.is_blocked or at.queue:
                    at.queue.append((_KERNEL, i, time, None))
                else:
                    begin = time if time > at.time else at.time
                    start[i] = begin
                    end[i] = at.time = begin + seconds[i]
            elif kind != _HOST:
                self._time = time
                self._do(kind, i)
                time = self._time
                if self._n_awaited:
                    self._cursor = i + 1
                    return
        self._cursor, self._time = self._n, time

    def woken(self, signal: _Signal, i: int) -> None:
        self._n_awaited -= 1
        self._host_waits(signal, i)

    def _do(self, kind: int, i: int) -> None:
        _, streams, _, _, subject, is_async = self._columns
        stream = streams[i]
        if kind in (_COLLECTIVE, _SEND, _RECEIVE):
            done = self._calls[subject[i]] = self._communicate(kind, i, stream)
            if not is_async[i]:
                self._await(i, stream, done)
        elif kind == _WAIT:
            done = self._calls.pop(subject[i], None)
            if done is not None:
                self._await(i, stream, done)
        elif kind == _SYNC:
            which = [*self._streams.values(), *self._lines.values()] if stream < 0 else [self._stream(stream)]
            for each in which:
                self._host_waits(self._position(each, i), i)
        elif kind == _RECORD_EVENT:
            self._events[subject[i]] = self._position(self._stream(stream), i)
        elif kind == _WAIT_EVENT:
            happened = self._events.get(subject[i])
            if happened is not None:
                self._await(i, stream, happened)

    def _communicate(self, kind: int, i: int, stream: int) -> _Signal:
        """Join the peers, on a lane of its own that first waits for what the call's stream does now."""
        player, program = self.player, self.player.program
        group, sequence, done = int(program.group[i]), int(program.sequence[i]), _Signal(None, i)
        if kind == _COLLECTIVE:
            meeting: Meeting | None = player.meetings[group]
            line = self._line((group,), group)
            key: tuple[Any, ...] = (meeting, sequence)
        else:
            meeting, peer = None, int(program.peer[i])
            line = self._line((group, peer, kind), group)
            other = player.peers.get(peer)
            ends = (player.rank, other) if kind == _SEND else (other, player.rank)
            key = (*ends, player.meetings[group].pattern, sequence) if other is not None else ()
        self.lane[i] = line.lane
        at = self._stream(stream)
        if program.is_synchronous:
            line.put((_AWAIT, i, self._time, _Signal(self._time)))
        else:
            line.put((_AWAIT, i, self._time, self._position(at, i)))
        line.put((_JOIN, i, self._time, (key, meeting, done)))
        return done

    def _await(self, i: int, stream: int, signal: _Signal) -> None:
        """Whoever called waits: its stream, or on a CPU and for stream -1 the host itself."""
        if stream < 0 or self.player.program.is_synchronous:
            self._host_waits(signal, i)
        else:
            self._stream(stream).put((_AWAIT, i, self._time, signal))

    def _host_waits(self, signal: _Signal, i: int) -> None:
        if signal.time is not None:
            if self.player.program.is_synchronous and signal.time > self._time:
                self.stalls.append((i, 0, self._time, signal.time, signal.cause))
            self._time = max(self._time, signal.time)
            return
        self._n_awaited += 1
        signal.waiting.append(_Nap(self, i))

    def _position(self, stream: _Stream, i: int) -> _Signal:
        """When all that stands in a stream now is done."""
        if stream.is_free:
            return _Signal(max(stream.time, self._time), stream.cause)
        signal = _Signal()
        stream.queue.append((_SIGNAL, i, self._time, signal))
        return signal

    def _stream(self, number: int) -> _Stream:
        found = self._streams.get(number)
        if found is None:
            found = self._streams[number] = _Stream(self, len(self.lanes), number)
            self.lanes.append(Lane(LaneKind.STREAM, f"stream {number}", number))
        return found

    def _line(self, key: tuple[Any, ...], group: int) -> _Stream:
        found = self._lines.get(key)
        if found is None:
            found = self._lines[key] = _Stream(self, len(self.lanes), -1)
            program = self.player.program
            name = program.group_names[group] or "group"
            if len(key) > 1:
                name = f"{name} {'to' if key[2] == _SEND else 'from'} rank {key[1]}"
            self.lanes.append(
                Lane(LaneKind.COMMUNICATION, f"{name} ({len(program.groups[group])} ranks)", group)
            )
        return found

    # -- a stream -----------------------------------------------------------------------------------------

    def run(self, stream: _Stream) -> None:
        """Do what stands in a queue until the stream has to wait."""
        queue, stage = stream.queue, self._stage
        while queue and not stream.is_blocked:
            kind, i, issued, what = queue.popleft()
            if kind == _KERNEL:
                self.start[i] = begin = max(stream.time, issued)
                self.end[i] = stream.time = begin + self.seconds[i]
            elif kind == _AWAIT:
                self._stream_waits(stream, i, issued, what)
            elif kind == _SIGNAL:
                what.cause = stream.cause
                stage.happen(what, max(stream.time, issued))
            else:
                key, meeting, done = what
                stream.is_blocked = True
                done.waiting.append(stream)
                if key:
                    stage.arrive(key, meeting, (self, i, stream.time, done))
                else:  # nobody is known there: it is taken to be ready
                    stage.n_alone += 1
                    self.ready[i] = self.start[i] = stream.time
                    self.end[i] = stream.time + self.seconds[i]
                    stage.happen(done, self.end[i])

    def _stream_waits(self, stream: _Stream, i: int, issued: float, signal: _Signal) -> None:
        if signal.time is None:
            stream.is_blocked = True
            signal.waiting.append(_Rest(stream, i, issued))
            return
        self.stall(stream, i, issued, signal)

    def stall(self, stream: _Stream, i: int, issued: float, signal: _Signal) -> None:
        before = max(stream.time, issued)
        if signal.time > before:  # type: ignore[operator]
            stream.time, stream.cause = signal.time, signal.cause  # type: ignore[assignment]
            if stream.number >= 0:
                self.stalls.append((i, stream.number, before, signal.time, signal.cause))  # type: ignore[arg-type]
        else:
            stream.time = before

    def timeline(self) -> RankTimeline:
        program = self.player.program
        end = np.array(self.end)
        done = np.fmax.accumulate(np.fmax(end, np.array(self.issued))) if len(end) else end
        columns = list(zip(*self.stalls, strict=True)) if self.stalls else [()] * 5
        types = (np.int64, np.int32, np.float64, np.float64, np.int64)
        start = np.array(self.start)
        ready = np.array(self.ready)
        return RankTimeline(
            self.player.rank, program, tuple(self.lanes), np.array(self.lane, np.int32), np.array(self.issued), start, end,
            np.where(np.isnan(ready), start, ready),
            Stalls(*(np.array(c, t) for c, t in zip(columns, types, strict=True))),
            done[program.work == Work.STEP],
        )  # fmt: skip


class _Rest:
    """A stream that waits for a signal."""

    __slots__ = ("_element", "_issued", "_stream")

    def __init__(self, stream: _Stream, element: int, issued: float) -> None:
        self._stream, self._element, self._issued = stream, element, issued

    def wake(self, signal: _Signal) -> None:
        self._stream.is_blocked = False
        self._stream.rank.stall(self._stream, self._element, self._issued, signal)

    def advance(self) -> None:
        self._stream.advance()


class _Nap:
    """A host that waits for a signal."""

    __slots__ = ("_element", "_rank")

    def __init__(self, rank: _Rank, element: int) -> None:
        self._rank, self._element = rank, element

    def wake(self, signal: _Signal) -> None:
        self._rank.woken(signal, self._element)

    def advance(self) -> None:
        self._rank.advance()


def _lists(program: StepProgram) -> tuple[list[Any], ...]:
    """Columns as lists, which a loop reads several times faster."""
    columns = (
        program.work,
        program.stream,
        program.seconds,
        program.host_seconds,
        program.subject,
        program.is_async,
    )
    return tuple(column.tolist() for column in columns)
