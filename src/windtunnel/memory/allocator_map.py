"""The allocator's segments at chosen moments: the owner of each block, and the holes.

tape, Allocator, positions ──> take_maps ──> a MapColumns for each position
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from windtunnel.memory.allocators.records import Segment
from windtunnel.memory.peak import CountingAllocator
from windtunnel.memory.tape import AllocationTape, play

__all__ = ["STATES", "MapColumns", "take_maps"]

STATES = ("active", "pending_free", "inactive")


@dataclass(frozen=True)
class MapColumns:
    """One moment. Columns with one element per segment, then columns with one per block."""

    allocated_bytes: int
    reserved_bytes: int
    address: np.ndarray
    n_bytes: np.ndarray
    stream: np.ndarray
    pool: tuple[str, ...]
    is_expandable: np.ndarray
    block_segment: np.ndarray
    block_offset: np.ndarray  # from the start of its segment
    block_bytes: np.ndarray
    block_state: np.ndarray  # index into STATES
    block_owner: np.ndarray  # id of the allocation on the tape, -1: none


class _AllTaken(Exception):
    """All maps have been taken."""


def take_maps(
    tape: AllocationTape, allocator: CountingAllocator, positions: Iterable[int]
) -> dict[int, MapColumns]:
    """Replay the tape and take a map right after each of these positions.

    Returns nothing for an allocator that cannot list its segments.
    """
    wanted = sorted(set(positions))
    look = getattr(allocator, "segments", None)
    found: dict[int, MapColumns] = {}
    if look is None or not wanted:
        return found
    position = -1

    def note(kind: int, id: int, address: int) -> None:
        nonlocal position
        position += 1
        if position == wanted[len(found)]:
            found[position] = _columns(look(), allocator.allocated_bytes, allocator.reserved_bytes)
            if len(found) == len(wanted):
                raise _AllTaken

    try:
        play(tape, allocator, note)
    except _AllTaken:
        return found
    except NotImplementedError:
        return {}
    return found


def _columns(segments: tuple[Segment, ...], allocated_bytes: int, reserved_bytes: int) -> MapColumns:
    blocks = [
        (
            number,
            block.address - segment.address,
            block.n_bytes,
            STATES.index(block.state),
            -1 if block.id is None else block.id,
        )
        for number, segment in enumerate(segments)
        for block in segment.blocks
    ]
    rows = [(s.address, s.n_bytes, s.stream, s.is_expandable) for s in segments]
    by_segment = np.array(rows, np.int64).reshape(-1, 4)
    return MapColumns(
        allocated_bytes,
        reserved_bytes,
        by_segment[:, 0],
        by_segment[:, 1],
        by_segment[:, 2],
        tuple(segment.pool for segment in segments),
        by_segment[:, 3].astype(bool),
        *np.array(blocks, np.int64).reshape(-1, 5).T,
    )
