"""Read what MindSpore's memory tracker leaves behind: blocks, tasks, operators, communication.

    memory_block.csv ───────> Block       tracker_graph.ir ────────> TrackedOp
    task.csv ───────────────> Task        comm_execute_order.csv ──> Communication

Every row carries a tick of the tracker's own clock, which goes on by one with each task, allocation and free. Files are
read line by line and checked: a run that was killed while it wrote leaves a half line, which is where reading ends.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from windtunnel.errors import CorruptFile

__all__ = [
    "Block",
    "Communication",
    "Task",
    "read_blocks",
    "read_communication",
    "read_tasks",
    "whole_number",
]

NEVER = (1 << 63) - 1  # the end of a block that was never freed
_LONGEST = 1 << 24  # characters of a line: a weight read by a million operators needs half of that


@dataclass(frozen=True, slots=True)
class Block:
    """One allocation."""

    start: int  # tick
    end: int | None  # tick; None: never freed
    address: int
    stream: int
    n_bytes: int  # after MindSpore's rounding
    kind: str  # "Weight", "PyNativeOutput", "Kernel", "WorkSpace", ...; "" if nothing was said
    task: int  # tick of the task it is booked to, which may be the wrong one; -1: none
    node: str
    is_persistent: bool
    stack: str


@dataclass(frozen=True, slots=True)
class Task:
    """Something the runtime was busy with when it allocated."""

    tick: int
    name: str  # "PyNative", "SyncTensorData", an actor of a graph
    node: str


@dataclass(frozen=True, slots=True)
class Communication:
    """One collective, send or receive, in the order in which the program started them."""

    group: str
    ranks: tuple[int, ...]
    primitive: str
    source: int | None
    target: int | None
    root: int | None


def read_blocks(path: Path) -> Iterator[Block]:
    """Every allocation, in the order of the file."""
    for line, row in _rows(path):
        end = whole_number(path, line, row, "end_time_stamp")
        task = row["producer_task"]
        yield Block(
            whole_number(path, line, row, "start_time_stamp"),
            None if end == NEVER else end,
            _address(path, line, row["device_addr"]),
            whole_number(path, line, row, "stream_id"),
            whole_number(path, line, row, "size"),
            row["type"],
            int(task) if task.isdecimal() else -1,
            row["node_name"],
            row.get("is_persistent") == "1",
            row["python_stack"],
        )


def read_tasks(path: Path) -> Iterator[Task]:
    for line, row in _rows(path):
        yield Task(whole_number(path, line, row, "time_stamp"), row["task_name"], row["node_name"])


def read_communication(path: Path) -> Iterator[Communication]:
    """This one file is quoted."""
    try:
        with path.open(encoding="utf-8", errors="backslashreplace", newline="") as file:
            for row in csv.DictReader(file):
                if None in row.values() or None in row:
                    return  # half a line: the program was killed
                yield Communication(
                    row["group"],
                    tuple(int(rank) for rank in row["comm_rank"].split() if rank.isdecimal()),
                    row["primitive"],
                    _rank(row["src_rank"]),
                    _rank(row["dest_rank"]),
                    _rank(row["root_rank"]),
                )
    except (OSError, KeyError, csv.Error) as error:
        raise CorruptFile(f"cannot read {path}: {error}") from error


def whole_number(path: Path, line: int, row: dict[str, str], column: str) -> int:
    text = row[column]
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise CorruptFile(f"{path} line {line}: {column} is {text[:40]!r}, not a whole number")
    return int(text)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Number and named cells of each line. MindSpore ends lines with a comma and never quotes."""
    try:
        with path.open(encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            header = file.readline(_LONGEST).rstrip("\r\n").rstrip(",").split(",")
            for line, text in enumerate(iter(lambda: file.readline(_LONGEST), ""), start=2):
                if not text.endswith("\n"):
                    return  # half a line: the program was killed
                cells = text.rstrip("\r\n").split(",")
                if len(cells) == len(header) + 1:
                    cells.pop()
                if len(cells) != len(header):
                    raise CorruptFile(f"{path} line {line}: {len(cells)} cells instead of {len(header)}")
                yield line, dict(zip(header, cells, strict=True))
    except OSError as error:
        raise CorruptFile(f"cannot read {path}: {error.strerror or error}") from error


def _address(path: Path, line: int, text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise CorruptFile(f"{path} line {line}: device_addr is {text[:40]!r}, not an address") from None


def _rank(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
