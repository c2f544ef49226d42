"""What a program asked of its memory allocator, in order: the input of every replay.

    recording ──> tape_of ─────────┐
    snapshot.pickle, *.csv ────────┴──> AllocationTape ──> play ──> any Allocator

Sizes are what the program asked for, before any allocator's rounding, so that one tape can be played through
all of them.
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


@dataclass(frozen=True)
class AllocationTape:
    """Requests as parallel columns. Ids are unique for each allocation, never reused."""

    kind: np.ndarray  # TapeKind, uint8
    id: np.ndarray  # int64; -1 where a request names no allocation
    n_bytes: np.ndarray  # int64; only of ALLOC, always > 0
    stream: np.ndarray  # int32
    persistent: np.ndarray  # bool: a weight or a constant, which MindSpore keeps in a pool of its own
    event: np.ndarray  # int64: the row of the recording, the line of the CSV, the entry of the trace
    notes: tuple[str, ...] = ()  # what the source did not say and had to be assumed, one sentence each
    recorded_peak_bytes: int | None = None  # what the source itself says about its run, where it does
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

    Nothing in a recording says when the device catches up with a side stream, so a storage freed while in use
    there (`record_stream`) counts as finished at once: its memory is back before the next allocation.
    """
    columns = recording.columns
    interesting = np.isin(
        columns["kind"], [Kind.ALLOC, Kind.FREE, Kind.RECORD_STREAM, Kind.SYNC, Kind.EMPTY_CACHE]
    )
    rows = np.flatnonzero(interesting)
    streams = np.unique(columns["stream"][columns["kind"] == Kind.RECORD_STREAM]).tolist()
    parts = (
        columns[name][rows].tolist() for name in ("kind", "subject", "value", "stream", "device", "role")
    )
    requests: list[Request] = []
    live: dict[int, int] = {}  # storage -> the row that allocated it, on this device only
    used_on: dict[int, set[int]] = {}  # row that allocated -> side streams
    for row, kind, subject, value, stream, where, role in zip(rows.tolist(), *parts, strict=True):
        if kind == Kind.ALLOC:
            if where == device and value > 0:
                live[subject] = row
                requests.append((TapeKind.ALLOC, row, value, stream, role == Role.WEIGHT, row))
        elif kind == Kind.FREE:
            id = live.pop(subject, -1)  # the row of a FREE does not always know its device; its ALLOC does
            if id >= 0:
                requests.append((TapeKind.FREE, id, 0, stream, False, row))
                for side in sorted(used_on.pop(id, ())):
                    requests.append((TapeKind.STREAM_DONE, -1, 0, side, False, row))
        elif kind == Kind.RECORD_STREAM:
            id = live.get(subject, -1)
            if id >= 0:
                used_on.setdefault(id, set()).add(stream)
                requests.append((TapeKind.RECORD_STREAM, id, 0, stream, False, row))
        elif where == device and kind == Kind.SYNC:
            for done in streams if stream < 0 else [stream]:
                requests.append((TapeKind.STREAM_DONE, -1, 0, done, False, row))
        elif where == device:
            requests.append((TapeKind.EMPTY_CACHE, -1, 0, 0, False, row))
    notes = () if recording.is_complete else ("the program was killed: the recording ends at its last flush",)
    return make_tape(requests, notes)


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
    # MindSpore's pool alone keeps weights apart, and alone asks to be told.
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
