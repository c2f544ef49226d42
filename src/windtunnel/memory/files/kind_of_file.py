"""What `windtunnel replay` was pointed at: one file, or the folder a run left behind.

    path ──> find_replay_files ──> ReplayFiles: kind, files (one for each rank), notes

The kind of a file is read from its first bytes, not from its name: a file from elsewhere may be called anything.
A folder is searched for the most exact record in it: recordings, then memory_block.csv, then logs, then graphs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from windtunnel.errors import CorruptFile, UsageError
from windtunnel.foreign_files import open_file
from windtunnel.memory.files.dryrun_log import is_mindspore_log

__all__ = ["ReplayFiles", "find_replay_files", "rank_in_path"]

WANTED = (
    "give a torch memory snapshot, a recording of windtunnel run, or MindSpore's memory_block.csv, log or "
    "validate.ir"
)
_PICKLE = b"\x80"
_GZIP = b"\x1f\x8b"
_ARROW = b"\xff\xff\xff\xff"
_BOM = b"\xef\xbb\xbf"
_CSV = b"start_time_stamp"
_GRAPH = b"# IR entry: @"
_TRACKER = b"(%"  # a line of tracker_graph.ir: (%8) = Dense(%2, %6), task_info: 4
_TASKS = b"time_stamp,task_name"
_RANK = re.compile(r"rank_?(\d{1,9})")
_MOST_FILES = 10_000  # of a folder: a world of that many ranks


@dataclass(frozen=True)
class ReplayFiles:
    """Files of one kind that belong together."""

    kind: str  # "recording", "snapshot", "memory_block", "graph_ir", "log"
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def find_replay_files(path: Path) -> ReplayFiles:
    """Say what a path is, without reading all of it."""
    if path.is_dir():
        return _in_folder(path)
    return ReplayFiles(_kind_of(path), (path,))


def rank_in_path(path: Path) -> int | None:
    """The rank that a file's folder names: `rank_3/memory_block.csv`."""
    found = _RANK.fullmatch(path.absolute().parent.name)
    return int(found.group(1)) if found else None


def _kind_of(path: Path) -> str:
    try:
        with open_file(path) as file:
            start = file.read(64).removeprefix(_BOM)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot read {path}: {reason}", hint=WANTED) from error
    for kind, first in (("recording", _ARROW), ("snapshot", _PICKLE), ("graph_ir", _GRAPH)):
        if start.startswith(first):
            return kind
    if start.startswith((_GZIP, _CSV)):
        return "memory_block"
    if start.startswith((_TRACKER, _TASKS)):
        raise UsageError(
            f"{path} lists the tasks of MindSpore's tracker, but has no sizes in bytes",
            hint="give the memory_block.csv beside it",
        )
    if start and is_mindspore_log(path):
        return "log"
    what = "is empty" if not start else "is not a file that replay can read"
    raise CorruptFile(f"{path} {what}", hint=WANTED)


def _in_folder(folder: Path) -> ReplayFiles:
    found = {kind: files for kind, search in _SEARCHES if (files := _sorted(search(folder)))}
    if not found:
        raise UsageError(f"there is no recording in {folder}, and no MindSpore file", hint=WANTED)
    kind, files = next(iter(found.items()))
    others = [f"{len(files)} {_NAMES[other]}" for other, files in found.items() if other != kind]
    notes = (f"the folder also has {' and '.join(others)}: give one by name",) if others else ()
    return ReplayFiles(kind, files, () if kind == "recording" else notes)


def _sorted(files: Iterable[Path]) -> tuple[Path, ...]:
    files = [file for file in files if file.is_file()]
    if len(files) > _MOST_FILES:
        raise UsageError(f"{len(files):,} files are too many", hint="give the files that matter by name")
    return tuple(sorted(files, key=lambda file: (rank_in_path(file) or 0, _numbers(file.name), file.name)))


def _numbers(name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d{1,18}", name)]


def _glob(*patterns: str) -> Callable[[Path], Iterable[Path]]:
    """The files of the first pattern that finds any."""

    def search(folder: Path) -> Iterable[Path]:
        return next((found for pattern in patterns if (found := list(folder.glob(pattern)))), [])

    return search


def _logs(folder: Path) -> Iterable[Path]:
    files = [*folder.glob("*.log"), *folder.glob("*.txt")] or list(folder.glob("rank_*/*.log"))
    return (file for file in files if file.is_file() and is_mindspore_log(file))


_SEARCHES: tuple[tuple[str, Callable[[Path], Iterable[Path]]], ...] = (
    ("recording", _glob("recording.arrows", "rank*/recording.arrows")),
    (
        "memory_block",
        _glob(
            "memory_block.csv", "memory_block.csv.gz", "rank*/memory_block.csv", "rank*/memory_block.csv.gz"
        ),
    ),
    ("log", _logs),
    ("graph_ir", _glob("*_validate_*.ir", "rank_*/*_validate_*.ir")),
)
_NAMES = {"recording": "recordings", "memory_block": "memory_block.csv", "log": "logs", "graph_ir": "graphs"}
