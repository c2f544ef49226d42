"""Read torch's memory snapshot as a tape, including what was allocated before its trace began.

    snapshot.pickle ──> load_snapshot ──> trace entries + final segments
                                              └──> allocations in place at the start + requests ──> AllocationTape

A trace names blocks by address, and addresses are reused; a tape needs an id for each allocation. A pickle can run any
code when it is loaded. A snapshot holds nothing but plain values, and `foreign_pickles` refuses every pickle that asks
for anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from windtunnel.errors import CorruptFile
from windtunnel.foreign_pickles import UnsafePickle, load_pickle_file
from windtunnel.memory.tape import AllocationTape, Request, TapeKind, make_tape

__all__ = ["load_snapshot", "read_snapshot", "tape_of_snapshot"]

_GROWS = ("segment_alloc", "segment_map")
_SHRINKS = ("segment_free", "segment_unmap")
_LARGEST = 1 << 50  # a petabyte: no device is larger, so a larger size is damage
_HINT = "write one with torch.cuda.memory._dump_snapshot"


def read_snapshot(path: Path, device: int | None = None) -> AllocationTape:
    """Read the trace of one device (the one with the longest trace, if none is named) as a tape."""
    return tape_of_snapshot(load_snapshot(path), path, device)


def tape_of_snapshot(snapshot: dict[str, Any], path: Path, device: int | None = None) -> AllocationTape:
    """The trace of one device as a tape; `path` is where the snapshot was read.

    A snapshot keeps only the last entries of a long run: what was allocated before them is put in front of
    the tape in order of address, and the notes of the tape say so. A free counts when it completed, and a run
    of released segments is an `empty_cache`, because a trace does not show the cause of the release.
    """
    traces = snapshot["device_traces"]
    if device is None:
        device = max(range(len(traces)), key=lambda d: len(traces[d]), default=0)
    try:
        trace = traces[device] if device < len(traces) else []
        segments = [s for s in snapshot["segments"] if s.get("device", 0) == device]
        return _tape_of_trace(trace, segments)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise CorruptFile(f"{path} is not a torch memory snapshot: {type(error).__name__} {error}") from error


def load_snapshot(path: Path) -> dict[str, Any]:
    """The values of a snapshot, of which segments and traces are lists; parts of it may be shared."""
    try:
        snapshot = load_pickle_file(path)
    except FileNotFoundError:
        raise CorruptFile(f"there is no snapshot at {path}") from None
    except OSError as error:
        raise CorruptFile(f"cannot read {path}: {error.strerror or error}") from error
    except UnsafePickle as error:
        raise CorruptFile(f"{path} cannot be read as a memory snapshot: {error}", hint=_HINT) from error
    if (
        type(snapshot) is not dict
        or type(snapshot.get("segments")) is not list
        or type(traces := snapshot.get("device_traces")) is not list
        or not all(type(trace) is list for trace in traces)
    ):
        raise CorruptFile(f"{path} is a pickle, but not a torch memory snapshot", hint=_HINT)
    return snapshot


def _tape_of_trace(trace: list[dict[str, Any]], segments: list[dict[str, Any]]) -> AllocationTape:
    """Turn one device's trace into a tape; `segments` is the allocator's state after its last entry."""
    reader = _Reader()
    for index, entry in enumerate(trace):
        reader.read(entry, index)
    for address, n_bytes, stream in _active_blocks(segments):
        if address not in reader.live:
            reader.existed_before(address, n_bytes, stream)
    before = [
        (TapeKind.ALLOC, id, n_bytes, stream, False, -1)
        for _, (id, n_bytes, stream) in sorted(reader.before.items())
    ]
    at_start, peak = _reserved(trace, segments)
    notes = []
    if before or at_start:
        notes.append(
            f"the trace begins in the middle of the run: {len(before)} allocations from before it come first"
        )
    if reader.n_releases:
        notes.append(f"{reader.n_releases} releases of cached segments are replayed as empty_cache")
    if not trace:
        notes.append("the snapshot has no trace, only what was allocated when it was taken")
    return make_tape(before + reader.requests, tuple(notes), None, peak)


class _Reader:
    """Follows a trace and gives every allocation an id."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.live: dict[int, int] = {}  # address -> id
        self.before: dict[int, tuple[int, int, int]] = {}  # address -> id, bytes, stream
        self.streams = {0: 0}
        self.n_ids = 0
        self.n_releases = 0
        self.is_releasing = False

    def read(self, entry: dict[str, Any], index: int) -> None:
        action = entry["action"]
        if action in _SHRINKS:
            if not self.is_releasing:
                self.n_releases += 1
                self.requests.append((TapeKind.EMPTY_CACHE, -1, 0, 0, False, index))
            self.is_releasing = True
            return
        self.is_releasing = False
        if action not in ("alloc", "free_completed"):
            return
        address, n_bytes, stream = _int(entry["addr"]), _size(entry["size"]), _int(entry.get("stream", 0))
        if action == "alloc":
            self.live[address] = id = self._new_id()
            self.requests.append((TapeKind.ALLOC, id, n_bytes, self._number(stream), False, index))
            return
        if address not in self.live:
            self.existed_before(address, n_bytes, stream)
        self.requests.append((TapeKind.FREE, self.live.pop(address), 0, self._number(stream), False, index))

    def existed_before(self, address: int, n_bytes: int, stream: int) -> None:
        if address in self.before:
            raise ValueError(f"the block at {address:#x} is freed twice")
        self.live[address] = id = self._new_id()
        self.before[address] = (id, n_bytes, self._number(stream))

    def _number(self, stream: int) -> int:
        # The default stream is 0; torch names others by pointers, which are meaningless to a reader.
        return self.streams.setdefault(stream, len(self.streams))

    def _new_id(self) -> int:
        self.n_ids += 1
        return self.n_ids - 1


def _active_blocks(segments: list[dict[str, Any]]) -> Iterator[tuple[int, int, int]]:
    """Address, requested bytes and stream of what is in use; torch 2.0 gives no addresses of blocks."""
    seen: set[int] = set()
    for segment in segments:
        address, blocks = _int(segment["address"]), segment["blocks"]
        # In a pickle two segments can have one list; a million times a million blocks would be walked.
        if type(blocks) is not list or id(blocks) in seen:
            raise ValueError(f"the segment at {address:#x} has no blocks of its own")
        seen.add(id(blocks))
        for block in blocks:
            address = _int(block.get("address", address))
            if block["state"].startswith("active"):
                yield address, _size(_requested(block)), _int(segment.get("stream", 0))
            address += _size(block["size"])


def _requested(block: dict[str, Any]) -> Any:
    if "requested_size" in block:
        return block["requested_size"]
    return block["history"][0]["real_size"] if block.get("history") else block["size"]


def _reserved(trace: list[dict[str, Any]], segments: list[dict[str, Any]]) -> tuple[int, int]:
    """Reserved bytes when the trace began and at their highest, counted back from the final segments."""
    changes = [
        _size(entry["size"]) * (1 if entry["action"] in _GROWS else -1)
        for entry in trace
        if entry["action"] in _GROWS + _SHRINKS
    ]
    at_end = sum(_size(segment["total_size"]) for segment in segments)
    at_start = at_end - sum(changes)
    return at_start, max(accumulate(changes, initial=at_start))


def _int(value: Any) -> int:
    if type(value) is not int:
        # Not its text: a value whose parts are shared can be endless to print.
        raise TypeError(f"found a {type(value).__name__} where an integer is expected")
    return value


def _size(value: Any) -> int:
    if not 0 < _int(value) <= _LARGEST:
        raise ValueError(f"{value} bytes cannot be an allocation")
    return value
