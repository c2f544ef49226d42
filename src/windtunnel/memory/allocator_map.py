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

    The tape tells beforehand when most is requested, and how much. No peak is lower than that, and above it few moments
    are higher than all before them. Reserved bytes hardly fall before that moment, so their peak is not looked for there.
    Where this is not so, or where so many moments are candidates that listing their blocks would take longer than the
    replay, `taken` lacks a peak.
    """

    def __init__(self, tape: AllocationTape, allocator: CountingAllocator) -> None:
        super().__init__(allocator)
        self._least, self._when = _most_requested(tape)
        self._highest_live = self._highest_reserved = self._least - 1
        self._is_before_alloc = np.append(tape.kind[1:] == TapeKind.ALLOC, False).tolist()
        self._n_left = max(len(tape), _FREE_BLOCKS)
        self._seen: dict[str, _Seen] = {}  # by the name of the peak

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
        return {seen.position: seen.columns() for seen in self._seen.values()}

    def _rise(self, live: int, reserved: int) -> None:
        position = len(self.allocated) - 1
        peaks = []
        if live > self._highest_live:
            self._highest_live = live
            if not self._is_before_alloc[position]:  # otherwise the next moment is higher still
                peaks.append("live")
        if reserved > self._highest_reserved:
            self._highest_reserved = reserved
            if position >= self._when:
                peaks.append("reserved")
        if peaks and self._n_left > 0:
            seen = _Seen(position, self._look(), live, reserved)
            self._seen.update(dict.fromkeys(peaks, seen))

    def _look(self) -> tuple[Segment, ...] | None:
        look = getattr(self.allocator, "segments", None)
        try:
            segments: tuple[Segment, ...] | None = None if look is None else look()
        except NotImplementedError:
            return None
        self._n_left -= sum(len(segment.blocks) for segment in segments or ())
        return segments


@dataclass(frozen=True, slots=True)
class _Seen:
    """The segments at one position."""

    position: int
    segments: tuple[Segment, ...] | None  # None: the allocator cannot list them
    live: int
    reserved: int

    def columns(self) -> MapColumns | None:
        return None if self.segments is None else _columns(self.segments, self.live, self.reserved)


def _most_requested(tape: AllocationTape) -> tuple[int, int]:
    """The highest sum of requested bytes that were alive at the same time, and its first position."""
    change = np.where(tape.kind == TapeKind.ALLOC, tape.n_bytes, 0)
    free_at, owner = freed_by(tape)
    change[free_at] -= tape.n_bytes[owner]
    requested = change.cumsum()
    return (int(requested.max()), int(requested.argmax())) if len(tape) else (0, 0)


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
