"""The allocator's segments at chosen moments: the owner of each block, and the holes.

    tape, Allocator ──> PeakMaps, during a replay ──> a MapColumns for each peak
    tape, Allocator, positions ──> take_maps ──> a MapColumns for each position

Where the peaks are is known only after a replay. `PeakMaps` takes a map of every moment that may turn out to be one and
keeps the last: the tape need not be played again for the maps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from windtunnel.memory.allocators.records import Segment
from windtunnel.memory.peak import CountingAllocator, Meter, freed_by
from windtunnel.memory.tape import AllocationTape, TapeKind, play

__all__ = ["STATES", "MapColumns", "PeakMaps", "take_maps"]

STATES = ("active", "pending_free", "inactive")
_FREE_BLOCKS = 20_000  # that `PeakMaps` may list of a short tape; of a long one, one for each request


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


class PeakMaps(Meter):
    """A meter that also maps the moments that may be the peak of live or of reserved bytes.

    A peak is never lower than the most that was requested at one time, which the tape tells beforehand. Above that, few
    moments are higher than all before them. If there are many, listing their blocks would take longer than the replay:
    then it stops, and `taken` lacks a peak.
    """

    def __init__(self, tape: AllocationTape, allocator: CountingAllocator) -> None:
        super().__init__(allocator)
        self._least = _most_requested(tape)
        self._highest_live = self._highest_reserved = self._least - 1
        self._is_before_alloc = np.append(tape.kind[1:] == TapeKind.ALLOC, False).tolist()
        self._n_left = max(len(tape), _FREE_BLOCKS)
        self._maps: dict[str, tuple[int, MapColumns | None]] = {}  # which peak -> its position, its map

    def __call__(self, kind: int, id: int, address: int) -> None:
        if not self.base_address:
            self.base_address = address
        live, reserved = self.allocator.allocated_bytes, self.allocator.reserved_bytes
        self.allocated.append(live)
        self.reserved.append(reserved)
        if reserved >= self._least and (live > self._highest_live or reserved > self._highest_reserved):
            self._rise(live, reserved)

    def taken(self) -> dict[int, MapColumns | None]:
        """Return the maps by position; None: the allocator cannot list its segments."""
        return dict(self._maps.values())

    def _rise(self, live: int, reserved: int) -> None:
        position = len(self.allocated) - 1
        peaks = []
        if live > self._highest_live:
            self._highest_live = live
            if not self._is_before_alloc[position]:  # otherwise the next moment is higher still
                peaks.append("live")
        if reserved > self._highest_reserved:
            self._highest_reserved = reserved
            peaks.append("reserved")
        if peaks and self._n_left > 0:
            taken = self._take(live, reserved)
            self._maps.update(dict.fromkeys(peaks, (position, taken)))

    def _take(self, live: int, reserved: int) -> MapColumns | None:
        look = getattr(self.allocator, "segments", None)
        try:
            found = None if look is None else _columns(look(), live, reserved)
        except NotImplementedError:
            return None
        if found is not None:
            self._n_left -= len(found.block_owner)
        return found


def _most_requested(tape: AllocationTape) -> int:
    """The highest sum of requested bytes that were alive at the same time."""
    change = np.where(tape.kind == TapeKind.ALLOC, tape.n_bytes, 0)
    free_at, owner = freed_by(tape)
    change[free_at] -= tape.n_bytes[owner]
    return int(change.cumsum().max(initial=0))


class _AllTaken(Exception):
    """All maps have been taken."""


def take_maps(
    tape: AllocationTape, allocator: CountingAllocator, positions: Iterable[int]
) -> dict[int, MapColumns]:
    """Play the tape and take a map right after each of these positions.

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
