"""The requests of a program to its memory allocator, in order: the input of every replay.

    recording ──> tape_of ─────────┐
    snapshot.pickle, *.csv ────────┴──> AllocationTape ──> play ──> any Allocator

Sizes are as requested, before any allocator's rounding, so one tape can be replayed through all allocators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from inspect import signature
from typing import Protocol

import numpy as np

from windtunnel.events.model import Kind, Recording, Role

__all__ = ["AllocationTape", "Note", "Player", "Request", "TapeKind", "make_tape", "play", "tape_of"]

Request = tuple[int, int, int, int, bool, int]  # kind, id, n_bytes, stream, persistent, event
Note = Callable[[int, int, int], None]


class TapeKind(IntEnum):
    """One request to an allocator."""

    ALLOC = 1
    FREE = 2
    RECORD_STREAM = 3
    STREAM_DONE = 4
    EMPTY_CACHE = 5


class Player(Protocol):
    """The part of an allocator that a tape needs."""

    def alloc(self, id: int, n_bytes: int, stream: int = 0) -> int: ...
    def free(self, id: int) -> None: ...
    def record_stream(self, id: int, stream: int) -> None: ...
    def stream_done(self, stream: int) -> None: ...
    def empty_cache(self) -> None: ...


_TAPE_KIND = np.zeros(256, np.uint8)
_TAPE_KIND[[Kind.ALLOC, Kind.FREE, Kind.RECORD_STREAM, Kind.EMPTY_CACHE]] = [
    TapeKind.ALLOC,
    TapeKind.FREE,
    TapeKind.RECORD_STREAM,
    TapeKind.EMPTY_CACHE,
]


@dataclass(frozen=True)
class AllocationTape:
    """Requests as parallel columns. Ids are unique for each allocation, never reused."""

    kind: np.ndarray  # TapeKind, uint8
    id: np.ndarray  # int64; -1 where a request names no allocation
    n_bytes: np.ndarray  # int64; only of ALLOC, always > 0
    stream: np.ndarray  # int32
    persistent: np.ndarray  # bool: a weight or a constant, which MindSpore keeps in a separate pool
    event: np.ndarray  # int64: the row of the recording, the line of the CSV, the entry of the trace
    notes: tuple[
        str, ...
    ] = ()  # what had to be assumed because the source does not have it, one sentence each
    recorded_peak_bytes: int | None = None  # as recorded by the source itself, if it is
    recorded_peak_reserved_bytes: int | None = None

    def __len__(self) -> int:
        return len(self.kind)


def tape_of(recording: Recording, device: int = 0) -> AllocationTape:
    """Take the allocator requests of one device out of a recording.

    An id of the tape is the row of the recording that allocates, because a storage that is resized is
    allocated again under the same storage number. Allocations of zero bytes never reach an allocator and are
    left out.

    What was known to be a weight when it was allocated is persistent. A weight that was an ordinary tensor at
    first, as most are in PyTorch and in MindSpore's PyNative mode, is not.

    A recording does not show when the device catches up with a side stream, so a storage freed while in use
    there (`record_stream`) counts as finished at once: its memory is back before the next allocation.
    """
    columns = recording.columns
    kind, stream = columns["kind"], columns["stream"]
    rows, ids = _named(columns, device)
    here = columns["device"] == device
    emptied = np.flatnonzero(here & (kind == Kind.EMPTY_CACHE))
    told = (
        here & (kind == Kind.SYNC) & (columns["extra"] != 1)
    )  # reading a value lets no side stream's memory go
    done = _finished(rows, ids, columns, np.flatnonzero(told))
    event = np.concatenate([rows, emptied, done[0]])
    tape_kind = _TAPE_KIND[kind[event]]
    tape_kind[len(event) - len(done[0]) :] = TapeKind.STREAM_DONE
    tape_id = np.concatenate([ids, np.full(len(emptied) + len(done[0]), -1)])
    tape_stream = np.concatenate([stream[rows], np.zeros(len(emptied), np.int32), done[1]])
    is_alloc = tape_kind == TapeKind.ALLOC
    order = np.lexsort(
        (tape_kind == TapeKind.STREAM_DONE, event)
    )  # a stream is done after the free it let through
    return AllocationTape(
        tape_kind[order],
        tape_id[order],
        np.where(is_alloc, columns["value"][event], 0)[order],
        tape_stream[order].astype(np.int32),
        (is_alloc & (columns["role"][event] == Role.WEIGHT))[order],
        event[order],
        _how_it_ends(recording),
    )


def _how_it_ends(recording: Recording) -> tuple[str, ...]:
    if recording.is_damaged:
        return (f"the recording is damaged: only the {len(recording):,} events before the damage are used",)
    if not recording.is_complete:
        return ("the program was killed: the recording ends at its last flush",)
    return ()


def _named(columns: dict[str, np.ndarray], device: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that allocate, free or use a storage of this device, and for each the row that allocated it."""
    kind = columns["kind"]
    rows = np.flatnonzero((kind == Kind.ALLOC) | (kind == Kind.FREE) | (kind == Kind.RECORD_STREAM))
    rows = rows[np.lexsort((rows, columns["subject"][rows]))]
    owner, position = columns["subject"][rows], np.arange(len(rows))
    is_alloc, is_free = kind[rows] == Kind.ALLOC, kind[rows] == Kind.FREE
    born = np.maximum.accumulate(np.where(is_alloc, position, -1)) if len(rows) else position
    freed_before = np.full(len(rows), -1)
    freed_before[1:] = np.maximum.accumulate(np.where(is_free, position, -1))[:-1]
    birth = rows[np.maximum(born, 0)]
    is_live = (born >= 0) & (owner[np.maximum(born, 0)] == owner) & (is_alloc | (freed_before < born))
    # A FREE row does not always have a device; the ALLOC row does.
    is_ours = is_live & (columns["device"][birth] == device) & (columns["value"][birth] > 0)
    order = np.argsort(rows[is_ours])
    return rows[is_ours][order], birth[is_ours][order]


def _finished(
    rows: np.ndarray, ids: np.ndarray, columns: dict[str, np.ndarray], syncs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows after which a side stream is done, and which: its syncs, and the frees of storages it used."""
    kind, stream = columns["kind"][rows], columns["stream"]
    side = np.unique(stream[rows[kind == Kind.RECORD_STREAM]]).tolist()
    found = [(row, s) for row in syncs.tolist() for s in (side if stream[row] < 0 else [int(stream[row])])]
    uses: dict[int, set[int]] = {}
    for id, row in zip(
        ids[kind == Kind.RECORD_STREAM].tolist(), rows[kind == Kind.RECORD_STREAM].tolist(), strict=True
    ):
        uses.setdefault(id, set()).add(int(stream[row]))
    if uses:
        is_free = (kind == Kind.FREE) & np.isin(ids, list(uses))
        for id, row in zip(ids[is_free].tolist(), rows[is_free].tolist(), strict=True):
            found += [(row, s) for s in sorted(uses[id])]
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def make_tape(
    requests: list[Request],
    notes: tuple[str, ...] = (),
    recorded_peak_bytes: int | None = None,
    recorded_peak_reserved_bytes: int | None = None,
) -> AllocationTape:
    """Columns from rows."""
    kind, id, n_bytes, stream, persistent, event = zip(*requests, strict=True) if requests else ((),) * 6
    return AllocationTape(
        np.array(kind, np.uint8),
        np.array(id, np.int64),
        np.array(n_bytes, np.int64),
        np.array(stream, np.int32),
        np.array(persistent, np.bool_),
        np.array(event, np.int64),
        notes,
        recorded_peak_bytes,
        recorded_peak_reserved_bytes,
    )


def play(tape: AllocationTape, allocator: Player, note: Note | None = None) -> None:
    """Send every request of a tape to an allocator; out of memory is raised as the allocator raises it.

    `note(kind, id, address)` is called after each request, with address 0 for all but allocations.
    """
    alloc, free = allocator.alloc, allocator.free
    # Only MindSpore's pool keeps weights apart, and only it takes this argument.
    knows_persistent = "persistent" in signature(alloc).parameters
    persistent = tape.persistent.tolist() if knows_persistent else [False] * len(tape)
    columns = (tape.kind.tolist(), tape.id.tolist(), tape.n_bytes.tolist(), tape.stream.tolist(), persistent)
    address = 0
    for kind, id, n_bytes, stream, is_persistent in zip(*columns, strict=True):
        if kind == TapeKind.ALLOC:
            if is_persistent:
                address = alloc(id, n_bytes, stream, persistent=True)  # type: ignore[call-arg]
            else:
                address = alloc(id, n_bytes, stream)
        elif kind == TapeKind.FREE:
            free(id)
        elif kind == TapeKind.RECORD_STREAM:
            allocator.record_stream(id, stream)
        elif kind == TapeKind.STREAM_DONE:
            allocator.stream_done(stream)
        else:
            allocator.empty_cache()
        if note is not None:
            note(kind, id, address)
            address = 0
