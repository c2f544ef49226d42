"""A recording with everything that is computed from it to answer questions about memory, each part built once.

    Recording, make_allocator ──> RecordedMemory ──┬──> lifetimes
                                                   ├──> a tape per device
                                                   └──> a tape played without a limit: Played (bytes, maps at the peaks)

The peak, the page, the files of other tools and the replays of a what-if all read from one such object, so a recording
is paired, sorted and played once, however many of them are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from windtunnel.events.model import Recording
from windtunnel.memory.allocator_map import MapColumns, PeakMaps
from windtunnel.memory.lifetime import Lifetimes, lifetimes_of
from windtunnel.memory.peak import CountingAllocator, Replay, replay
from windtunnel.memory.tape import AllocationTape, tape_of

__all__ = ["MakeAllocator", "Played", "RecordedMemory"]

MakeAllocator = Callable[[int | None], CountingAllocator]  # fresh; of this many bytes, or without a limit


@dataclass(frozen=True)
class Played:
    """A tape after one replay without a limit."""

    replay: Replay
    maps: Mapping[int, MapColumns | None]  # position -> the map there; None: this allocator has no map


class RecordedMemory:
    """The memory of one recording, under one allocator. Every part is built when it is first asked for, then kept."""

    def __init__(self, recording: Recording, make_allocator: MakeAllocator, takes_maps: bool = False) -> None:
        self.recording = recording
        self.make_allocator = make_allocator
        self._takes_maps = takes_maps  # at the peaks, while the tape is played
        self._tapes: dict[int, AllocationTape] = {}
        self._played: dict[int, Played] = {}

    @cached_property
    def lives(self) -> Lifetimes:
        return lifetimes_of(self.recording)

    def tape(self, device: int) -> AllocationTape:
        if device not in self._tapes:
            self._tapes[device] = tape_of(self.recording, device)
        return self._tapes[device]

    def played(self, device: int) -> Played:
        """Play the tape of this device through an allocator without a limit, which gives the program's need."""
        if device not in self._played:
            self._played[device] = self._play(self.tape(device))
        return self._played[device]

    def under(self, make_allocator: MakeAllocator) -> RecordedMemory:
        """The same recording under another allocator: lifetimes and tapes are shared."""
        other = RecordedMemory(self.recording, make_allocator)
        other._tapes = self._tapes
        other.__dict__["lives"] = self.lives
        return other

    @property
    def n_bytes(self) -> int:
        """How much memory of this machine its arrays take."""
        recording = self.recording
        arrays = [*recording.columns.values(), *recording.inputs, *recording.outputs]
        records: list[Any] = [*self._tapes.values(), *(played.replay for played in self._played.values())]
        if "lives" in self.__dict__:
            records.append(self.lives)
        for record in records:
            values = (getattr(record, each.name) for each in fields(record))
            arrays += [value for value in values if isinstance(value, np.ndarray)]
        return sum(array.nbytes for array in arrays)

    def _play(self, tape: AllocationTape) -> Played:
        allocator = self.make_allocator(None)
        if not self._takes_maps:
            return Played(replay(tape, allocator), {})
        maps = PeakMaps(tape, allocator)
        return Played(replay(tape, allocator, maps), maps.taken())
