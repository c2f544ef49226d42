"""Read the files of MindSpore's memory tracker: blocks, tasks, operators, communication.

    memory_block.csv ───────> Block       tracker_graph.ir ────────> TrackedOp
    task.csv ───────────────> Task        comm_execute_order.csv ──> Communication

Every row has a tick of the tracker's own clock, which advances by one with each task, allocation and free. Files are
read line by line and checked: a run that was killed while writing leaves half a line, where reading ends.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from windtunnel.errors import CorruptFile
from windtunnel.foreign_files import open_file

__all__ = [
    "LONGEST_LINE",
    "Block",
    "Communication",
    "Task",
    "check_length",
    "read_blocks",
    "read_communication",
    "read_tasks",
    "whole_number",
]

NEVER = (1 << 63) - 1  # the end of a block that was never freed
LONGEST_LINE = 1 << 24  # characters of a line: a weight read by a million operators needs half of that
_MOST_STREAMS, _MOST_RANKS = (
    1 << 30,
    1 << 24,
)  # limits: larger numbers were not written by MindSpore
_BLOCK_COLUMNS = (
    "start_time_stamp", "end_time_stamp", "device_addr", "stream_id", "size", "type", "producer_task", "node_name",
    "python_stack",
)  # fmt: skip
_TASK_COLUMNS = ("time_stamp", "task_name", "node_name")


@dataclass(frozen=True, slots=True)
class Block:
    """One allocation."""

    start: int  # tick
    end: int | None  # tick; None: never freed
    address: int
    stream: int
    n_bytes: int  # after MindSpore's rounding
    kind: str  # "Weight", "PyNativeOutput", "Kernel", "WorkSpace", ...; "" if unknown
    task: int  # tick of the task it is attributed to, which may be the wrong one; -1: none
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
    once: dict[str, str] = {}  # stacks and names repeat: one copy of each
    for line, (start, end, address, stream, size, kind, task, node, stack, persistent) in _rows(
        path, _BLOCK_COLUMNS, ("is_persistent",)
    ):
        ends = whole_number(path, line, "end_time_stamp", end)
        yield Block(
            whole_number(path, line, "start_time_stamp", start),
            None if ends == NEVER else ends,
            _address(path, line, address),
            whole_number(path, line, "stream_id", stream, _MOST_STREAMS),
            whole_number(path, line, "size", size),
            once.setdefault(kind, kind),
            int(task) if _is_number(task) else -1,
            once.setdefault(node, node),
            persistent == "1",
            once.setdefault(stack, stack),
        )


def read_tasks(path: Path) -> Iterator[Task]:
    once: dict[str, str] = {}
    for line, (tick, name, node) in _rows(path, _TASK_COLUMNS):
        yield Task(
            whole_number(path, line, "time_stamp", tick),
            once.setdefault(name, name),
            once.setdefault(node, node),
        )


def read_communication(path: Path) -> Iterator[Communication]:
    """This one file is quoted."""
    try:
        with open_file(path, "r", encoding="utf-8", errors="backslashreplace", newline="") as file:
            for row in csv.DictReader(file):
                if None in row.values() or None in row:
                    return  # half a line: the program was killed
                yield Communication(
                    row["group"],
                    tuple(rank for word in row["comm_rank"].split() if (rank := _rank(word)) is not None),
                    row["primitive"],
                    _rank(row["src_rank"]),
                    _rank(row["dest_rank"]),
                    _rank(row["root_rank"]),
                )
    except (OSError, KeyError, csv.Error) as error:
        raise CorruptFile(f"cannot read {path}: {error}") from error


def whole_number(path: Path, line: int, column: str, text: str, most: int = NEVER) -> int:
    if not _is_number(text) or int(text) > most:
        raise CorruptFile(f"{path} line {line}: {column} is {text[:40]!r}, not an integer up to {most:,}")
    return int(text)


def check_length(path: Path, line: int, text: str) -> None:
    """Raise if a line was cut off by our limit, not by the end of the program."""
    if len(text) >= LONGEST_LINE:
        raise CorruptFile(
            f"{path} line {line} has {LONGEST_LINE:,} characters or more; MindSpore writes no lines of that length"
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 19


def _rows(
    path: Path, columns: tuple[str, ...], others: tuple[str, ...] = ()
) -> Iterator[tuple[int, list[str]]]:
    """Number and the wanted cells of each line; `others` may be missing ("")."""
    try:
        with open_file(path, "r", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            header = _cells(file.readline(LONGEST_LINE))
            missing = [column for column in columns if column not in header]
            if missing:
                raise CorruptFile(f"{path} has no column {missing[0]}, which MindSpore's file has")
            wanted = [
                header.index(column) if column in header else len(header) for column in (*columns, *others)
            ]
            for line, text in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), start=2):
                if not text.endswith("\n"):
                    check_length(path, line, text)
                    return  # half a line: the program was killed
                cells = _cells(text)
                if len(cells) != len(header):
                    raise CorruptFile(f"{path} line {line}: {len(cells)} cells instead of {len(header)}")
                cells.append("")  # what a missing column holds
                yield line, [cells[index] for index in wanted]
    except OSError as error:
        raise CorruptFile(f"cannot read {path}: {error.strerror or error}") from error


def _cells(line: str) -> list[str]:
    """MindSpore ends lines with a comma and never quotes."""
    return line.rstrip("\r\n").removesuffix(",").split(",")


def _address(path: Path, line: int, text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise CorruptFile(f"{path} line {line}: device_addr is {text[:40]!r}, not an address") from None


def _rank(text: str) -> int | None:
    return int(text) if _is_number(text) and int(text) < _MOST_RANKS else None
