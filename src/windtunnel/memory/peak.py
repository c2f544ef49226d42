"""Play a tape through an allocator, and find the moment of peak memory.

    AllocationTape + Allocator ──> replay ──> Replay (bytes after every request) ──> the peak
    AllocationTape + limited Allocator ──> replay_limited ──> where it first fails, if it does

Bytes are measured on the allocator itself, request by request, so no rounding rule is repeated here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from windtunnel.errors import PredictedOutOfMemory
from windtunnel.memory.allocators.records import AllocatorStats
from windtunnel.memory.tape import AllocationTape, Player, TapeKind, play

__all__ = [
    "CountingAllocator", "Failure", "LimitedReplay", "Meter", "Replay", "freed_by", "replay", "replay_limited",
]  # fmt: skip

_SEARCH = 64  # drops examined for each deferred free: streams finish in about the order of their frees


class CountingAllocator(Player, Protocol):
    """An allocator that counts its bytes."""

    @property
    def allocated_bytes(self) -> int: ...
    @property
    def reserved_bytes(self) -> int: ...
    @property
    def peak_allocated_bytes(self) -> int: ...
    @property
    def peak_reserved_bytes(self) -> int: ...
    def stats(self) -> AllocatorStats: ...


@dataclass(frozen=True, slots=True)
class Replay:
    """What an allocator held after each request of a tape. A position is an index into the tape."""

    allocated: np.ndarray
    reserved: np.ndarray
    held: np.ndarray  # what each ALLOC took after rounding; 0 for other requests
    released: np.ndarray  # the position at which an ALLOC's bytes were given back; len(tape): never
    peak: int  # position of the first highest `allocated`, -1 for an empty tape
    peak_bytes: int
    peak_reserved_bytes: int
    base_address: int  # of the first allocation


@dataclass(frozen=True, slots=True)
class Failure:
    """The first request that did not fit."""

    position: int
    requested_bytes: int
    message: str


@dataclass(frozen=True, slots=True)
class LimitedReplay:
    """How a tape fares on a device of limited size."""

    failure: Failure | None
    n_retries: int  # times the allocator had to give its cache back to find room


def replay(tape: AllocationTape, allocator: CountingAllocator, meter: Meter | None = None) -> Replay:
    """Play a whole tape and note what the allocator holds after every request; `meter` may note more."""
    meter = meter or Meter(allocator)
    play(tape, allocator, meter)
    allocated = np.array(meter.allocated, np.int64)
    change = np.diff(allocated, prepend=0)
    is_alloc = tape.kind == TapeKind.ALLOC
    held = np.where(is_alloc, change, 0)
    return Replay(
        allocated,
        np.array(meter.reserved, np.int64),
        held,
        _released(tape, held, change),
        int(allocated.argmax()) if len(allocated) else -1,
        allocator.peak_allocated_bytes,
        allocator.peak_reserved_bytes,
        meter.base_address,
    )


def replay_limited(tape: AllocationTape, allocator: CountingAllocator) -> LimitedReplay:
    """Play a tape until the allocator runs out of memory, or to its end."""
    meter = Meter(allocator)
    failure = None
    try:
        play(tape, allocator, meter)
    except PredictedOutOfMemory as error:
        position = len(meter.allocated)
        failure = Failure(position, int(tape.n_bytes[position]), error.message)
    return LimitedReplay(failure, allocator.stats().num_alloc_retries)


class Meter:
    """Notes what an allocator holds after every request."""

    def __init__(self, allocator: CountingAllocator) -> None:
        self.allocator = allocator
        self.allocated: list[int] = []
        self.reserved: list[int] = []
        self.base_address = 0

    def __call__(self, kind: int, id: int, address: int) -> None:
        if not self.base_address:
            self.base_address = address
        self.allocated.append(self.allocator.allocated_bytes)
        self.reserved.append(self.allocator.reserved_bytes)


def freed_by(tape: AllocationTape) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the frees, and for each the position of the allocation that it frees."""
    alloc_at = np.flatnonzero(tape.kind == TapeKind.ALLOC)
    free_at = np.flatnonzero(tape.kind == TapeKind.FREE)
    if len(alloc_at) == 0 or len(free_at) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(tape.id[alloc_at], kind="stable")
    found = np.minimum(np.searchsorted(tape.id[alloc_at], tape.id[free_at], sorter=order), len(alloc_at) - 1)
    return free_at, alloc_at[order[found]]


def _released(tape: AllocationTape, held: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Where each allocation's bytes went back, allowing for allocators that count a free only later."""
    released = np.full(len(tape), len(tape))
    free_at, owner = freed_by(tape)
    released[owner] = free_at
    waiting = [(at, who) for at, who in zip(free_at.tolist(), owner.tolist(), strict=True) if change[at] == 0]
    if waiting:
        _release_late(
            waiting, held, np.flatnonzero((change < 0) & (tape.kind != TapeKind.FREE)), change, released
        )
    return released


def _release_late(
    waiting: list[tuple[int, int]],
    held: np.ndarray,
    drops: np.ndarray,
    change: np.ndarray,
    released: np.ndarray,
) -> None:
    """Match frees that gave nothing back at once with the later drops, oldest first."""
    left = {int(at): -int(change[at]) for at in drops}
    positions = sorted(left)
    oldest = 0
    for at, owner in waiting:
        released[owner] = len(released)
        while oldest < len(positions) and (left[positions[oldest]] == 0 or positions[oldest] < at):
            oldest += 1
        for drop in positions[oldest : oldest + _SEARCH]:
            if left[drop] >= held[owner]:
                left[drop] -= int(held[owner])
                released[owner] = drop
                break
