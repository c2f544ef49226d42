"""A recording under an allocator in one call, as the tests of this room ask for it."""

from __future__ import annotations

from windtunnel.events.model import Recording
from windtunnel.memory.allocation_list import MOST_ALLOCATIONS, RankDetail, rank_detail
from windtunnel.memory.analysis import RankMemory, analyse_memory
from windtunnel.memory.recorded_memory import MakeAllocator, RecordedMemory


def memory_of(
    recording: Recording, make_allocator: MakeAllocator, usable_bytes: int | None = None, device: int = 0
) -> RankMemory:
    return analyse_memory(RecordedMemory(recording, make_allocator), usable_bytes, device)


def detail_of(
    recording: Recording,
    make_allocator: MakeAllocator,
    device: int = 0,
    most_allocations: int = MOST_ALLOCATIONS,
) -> RankDetail:
    return rank_detail(RecordedMemory(recording, make_allocator, takes_maps=True), device, most_allocations)


def unplayed(recording: Recording) -> RecordedMemory:
    """For what brings its own allocator."""

    def refuse(device_bytes: int | None) -> None:
        raise AssertionError("nothing should be played here")

    return RecordedMemory(recording, refuse)
