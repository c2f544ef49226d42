"""MindSpore's memory_block.csv: one row per device allocation, written and read.

    recording + Allocator ──> write_memory_block ──> memory_block.csv
    memory_block.csv[.gz] ──> read_memory_block ───> AllocationTape

The columns are those of MindSpore 2.10, trailing comma included, so its own tools read the file. Unlike its
writer, `node_name` is the operator that made the storage, never the one that happened to be registered last.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from windtunnel.errors import CorruptFile
from windtunnel.events.model import Kind, Recording, Role
from windtunnel.foreign_files import open_file
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.memory.attribution import short_op
from windtunnel.memory.recorded_memory import RecordedMemory
from windtunnel.memory.tape import AllocationTape, Request, TapeKind, make_tape, play

__all__ = ["COLUMNS", "read_memory_block", "read_names", "write_memory_block"]

COLUMNS = (
    "start_time_stamp", "end_time_stamp", "device_addr", "stream_id", "pool_type", "size",
    "actual_used_memory", "actual_peak_memory", "file_name", "line_num", "type", "producer_task", "task_name",
    "node_name", "graph_name", "user_tasks", "last_user_task", "python_stack", "is_persistent", "is_small",
)  # fmt: skip
_SINCE_2_10 = {"actual_used_memory", "is_persistent", "is_small"}
_PERSISTENT = {"Weight", "ConstantValue"}  # the types that 2.10 marks so
_OLDER = (
    "the file is older than MindSpore 2.10 and does not mark persistent memory: weights and constants are assumed to"
    " be persistent"
)
_NEVER = (1 << 63) - 1
_MINDSPORE_POOL = "DefaultEnhancedAscendMemoryPool"
_OWN_POOL = "windtunnel-"
_PADDING = 512  # see `_requested`
_LARGEST = 1 << 50  # a petabyte: no device is larger, so a larger size is damage
_LONGEST = 1 << 24  # characters of a line: a weight read by a million operators needs half of that
_MOST_EXPANSION = 200  # characters of text for each byte of a .gz: MindSpore's files pack 10 to 40 times
_FREE_EXPANSION = 1 << 20  # and so many more, for small files
_SEPARATORS = str.maketrans(dict.fromkeys(",;|\n\r", " "))

_TYPES = {
    Role.WEIGHT: "Weight",
    Role.GRADIENT: "PyNativeOutput",
    Role.OPTIMIZER: "Weight",
    Role.INPUT: "PyNativeInput",
    Role.ACTIVATION: "PyNativeOutput",
    Role.TEMPORARY: "PyNativeOutput",
    Role.WORKSPACE: "WorkSpace",
    Role.COMMUNICATION: "Other",
    Role.FROZEN: "Weight",
    Role.COPY: "Weight",
}


def write_memory_block(path: Path, recorded: RecordedMemory, allocator: Allocator, device: int = 0) -> None:
    """Replay one device of a recording through a fresh allocator and write a row for each allocation."""
    recording, lives, tape = recorded.recording, recorded.lives, recorded.tape(device)
    placed = _Placer(allocator)
    play(tape, allocator, placed)
    persistent = set(tape.id[tape.persistent].tolist())
    ticks = _ticks(recording)
    pool = _MINDSPORE_POOL if allocator.name == "mindspore" else _OWN_POOL + allocator.name
    life_at = dict(zip(lives.birth.tolist(), range(len(lives)), strict=True))
    with _create(path) as file:
        file.write(",".join(COLUMNS) + ",\n")
        for row, place in placed.places.items():
            i = life_at[row]
            role, signature, frame = Role(int(lives.role[i])), int(lives.signature[i]), int(lives.frame[i])
            stack = recording.stack(frame)
            users = ticks.users.get(row, [])
            values = (
                ticks.start[row], ticks.end.get(row, _NEVER), hex(place.address), int(lives.stream[i]), pool,
                place.n_bytes, place.used_bytes, place.peak_bytes,
                _plain(stack[-1].file if stack else ""), stack[-1].line if stack else "", _TYPES[role],
                ticks.producer[row], _plain(recording.name(int(lives.module[i]))),
                _plain(short_op(recording.signatures[signature].name).removeprefix("ms.") if signature >= 0 else ""), "",
                "{" + "-".join(map(str, users)) + "}" if users else "", users[-1] if users else "",
                "".join(f"File:{_plain(f.file)};Line:{f.line};Function:{_plain(f.function)}|" for f in stack),
                int(row in persistent), 0,
            )  # fmt: skip
            file.write(",".join(map(str, values)) + ",\n")


def read_memory_block(path: Path) -> AllocationTape:
    """Read a memory_block.csv of MindSpore 2.7 to 2.10, or one of ours, as a tape.

    A row has the start and the end of an allocation in logical ticks; the tape has both, sorted by tick.
    """
    timed: list[tuple[int, Request]] = []
    peak_used = peak_with_fragments = 0
    is_older = False
    for line, cells in _rows(path):
        start = _whole(path, line, cells, "start_time_stamp")
        end = _whole(path, line, cells, "end_time_stamp")
        size = _whole(path, line, cells, "size")
        stream = _whole(path, line, cells, "stream_id")
        persistent = (
            cells["is_persistent"] == "1" if "is_persistent" in cells else cells["type"] in _PERSISTENT
        )
        is_older = "is_persistent" not in cells
        if not start < end:
            raise CorruptFile(
                f"{path} line {line}: an allocation ends at tick {end}, before its start {start}"
            )
        if not 0 < size <= _LARGEST or stream >= 1 << 31:
            raise CorruptFile(f"{path} line {line}: {size} bytes on stream {stream} cannot be an allocation")
        n_bytes = size if _is_unpadded(cells["pool_type"]) else _requested(size)
        timed.append((start, (TapeKind.ALLOC, line, n_bytes, stream, persistent, line)))
        if end != _NEVER:
            timed.append((end, (TapeKind.FREE, line, 0, stream, False, line)))
        if "actual_used_memory" in cells:
            peak_used = max(peak_used, _whole(path, line, cells, "actual_used_memory"))
        peak_with_fragments = max(peak_with_fragments, _whole(path, line, cells, "actual_peak_memory"))
    # At the same tick, frees come before allocations.
    timed.sort(key=lambda entry: (entry[0], -entry[1][0]))
    requests = [request for _, request in timed]
    return make_tape(requests, (_OLDER,) if is_older else (), peak_used or None, peak_with_fragments or None)


def read_names(path: Path, line: int) -> tuple[str, str]:
    """The task and the node of one line. MindSpore's own `node_name` may be the operator before the true one."""
    for number, cells in _rows(path):
        if number == line:
            return cells["task_name"], cells["node_name"]
    return "", ""


@dataclass(frozen=True, slots=True)
class _Place:
    address: int
    n_bytes: int  # after the allocator's rounding
    used_bytes: int
    peak_bytes: int


class _Placer:
    """Remembers where an allocator put everything."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.places: dict[int, _Place] = {}
        self.used_before = 0

    def __call__(self, kind: int, id: int, address: int) -> None:
        used = self.allocator.allocated_bytes
        if kind == TapeKind.ALLOC:
            peak = self.allocator.peak_reserved_bytes
            self.places[id] = _Place(address, used - self.used_before, used, peak)
        self.used_before = used


@dataclass(frozen=True, slots=True)
class _Ticks:
    """Logical time: one tick for each operator, allocation and free. Keys are rows of ALLOC events."""

    start: dict[int, int]
    end: dict[int, int]
    producer: dict[int, int]
    users: dict[int, list[int]]


def _ticks(recording: Recording) -> _Ticks:
    ticks = _Ticks({}, {}, {}, {})
    task: dict[int, int] = {}  # operator -> tick; an operator begins at its first allocation
    live: dict[int, int] = {}
    offsets, ids = recording.inputs[0].tolist(), recording.inputs[1].tolist()
    now = 0
    columns = (recording.columns[name].tolist() for name in ("kind", "subject", "extra"))
    for row, (kind, subject, extra) in enumerate(zip(*columns, strict=True)):
        if kind == Kind.ALLOC:
            if extra < 0 or extra not in task:
                task[extra], now = now, now + 1
            ticks.producer[row], ticks.start[row], now = task[extra], now, now + 1
            live[subject] = row
        elif kind == Kind.FREE:
            if subject in live:
                ticks.end[live.pop(subject)], now = now, now + 1
        elif kind == Kind.OP:
            if subject not in task:
                task[subject], now = now, now + 1
            for storage in ids[offsets[row] : offsets[row + 1]]:
                if storage in live:
                    ticks.users.setdefault(live[storage], []).append(task[subject])
    return ticks


def _is_unpadded(pool: str) -> bool:
    """Whether a pool's sizes round to themselves; torch_npu pads like MindSpore, our other models do not."""
    return pool.startswith(_OWN_POOL) and pool != _OWN_POOL + "npu"


def _requested(size: int) -> int:
    """The requested size, given MindSpore's padded size.

    Its pool takes (n + 512 + 31) // 512 * 512 bytes for n, so every n from size - 543 to size - 32 gives
    `size`. We take size - 512: the model `mindspore` rounds it back to exactly `size`, and it is the true
    request whenever that is a multiple of 512, as the large tensors of a model are, so that other models are
    exact too. The smallest size, 512, means 1 to 480 bytes: 480.
    """
    return size - _PADDING if size > _PADDING else max(1, size - 32)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Number and named cells of each line, after checking the header."""
    try:
        with open_file(path) as packed, _unpacked(packed, path) as file:
            n_left = _MOST_EXPANSION * os.fstat(packed.fileno()).st_size + _FREE_EXPANSION
            header = tuple(file.readline(_LONGEST).rstrip("\n").rstrip("\r").rstrip(",").split(","))
            if missing := set(COLUMNS) - _SINCE_2_10 - set(header):
                raise CorruptFile(
                    f"{path} is not a memory_block.csv: it has no column {sorted(missing)[0]}",
                    hint="MindSpore writes one with MS_ALLOC_CONF=memory_tracker:True",
                )
            for line, text in enumerate(iter(lambda: file.readline(_LONGEST), ""), start=2):
                if len(text) == _LONGEST:
                    raise CorruptFile(f"{path} line {line}: longer than any line MindSpore writes")
                n_left -= len(text)
                if n_left < 0:
                    raise CorruptFile(
                        f"{path} line {line}: it unpacks to more than {_MOST_EXPANSION} times its size",
                        hint="unpack it with gunzip, if you trust it, and give the .csv",
                    )
                cells = text.rstrip("\r\n").split(",")
                if len(cells) == len(header) + 1 and cells[-1] == "":
                    cells.pop()
                if len(cells) != len(header):
                    raise CorruptFile(f"{path} line {line}: {len(cells)} cells instead of {len(header)}")
                yield line, dict(zip(header, cells, strict=True))
    except (OSError, EOFError, zlib.error) as error:
        raise CorruptFile(f"cannot read {path}: {error}") from error


def _whole(path: Path, line: int, cells: dict[str, str], column: str) -> int:
    text = cells[column]
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise CorruptFile(f"{path} line {line}: {column} is {text[:40]!r}, not a whole number")
    return int(text)


def _plain(text: str) -> str:
    """MindSpore does not quote, so a separator inside a name would shift every cell after it."""
    return text.translate(_SEPARATORS)


def _create(path: Path) -> IO[str]:
    options: Any = {"encoding": "utf-8", "errors": "backslashreplace", "newline": "\n"}
    return gzip.open(path, "wt", **options) if _is_packed(path) else open(path, "w", **options)


def _unpacked(file: IO[bytes], path: Path) -> IO[str]:
    options: Any = {"encoding": "utf-8", "errors": "backslashreplace", "newline": "\n"}
    return gzip.open(file, "rt", **options) if _is_packed(path) else io.TextIOWrapper(file, **options)


def _is_packed(path: Path) -> bool:
    return str(path).endswith(".gz")
