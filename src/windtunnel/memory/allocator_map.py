"""How the allocator's segments lie at chosen moments: who sits in each block, and where the holes are.

tape, Allocator, positions ──> photograph ──> a MapColumns for each position
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from windtunnel.memory.allocator_records import Segment
from windtunnel.memory.peak import CountingAllocator
from windtunnel.memory.tape import AllocationTape, play

__all__ = ["STATES", "MapColumns", "photograph"]

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


class _Seen(Exception):
    """Everything that was to be photographed is."""


def photograph(
    tape: AllocationTape, allocator: CountingAllocator, positions: Iterable[int]
) -> dict[int, MapColumns]:
    """Play the tape and look at the allocator right after each of these positions.

    Empty for an allocator that cannot tell its segments.
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
                raise _Seen

    try:
        play(tape, allocator, note)
    except _Seen:
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
        *by_segment.T[:3],
        tuple(segment.pool for segment in segments),
        by_segment[:, 3].astype(bool),
        *np.array(blocks, np.int64).reshape(-1, 5).T,
    )
