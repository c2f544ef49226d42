"""What a step collected, one line per record, written immediately: the part of a dump that survives SIGKILL.

    add_* ──> one write(2) in append mode ──> journal.jsonl ──> (after a kill) journal_entries

A line is a JSON array, with NaN and Infinity as msProbe spells them:

    ["header", "dump.json", {"task": ...}]      first line: which file this is the journal of
    ["entry", NAME, BODY]                       one entry of dump.json
    ["frames", "0", [FRAME, ...]]               a call stack, the first time it is seen
    ["stack", NAME, 0]                          the entry was called from stack 0
    ["parent", NAME, PARENT or null]            one entry of construct.json

The kernel completes a write that it began unless the disk is full, so a killed process loses at most its last line.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from windtunnel.errors import CorruptFile
from windtunnel.foreign_files import open_file

__all__ = ["JOURNAL_NAME", "Journal", "is_being_written", "journal_entries", "journal_header"]

JOURNAL_NAME = "journal.jsonl"
_LONGEST_LINE = 1 << 25  # characters: as long as the longest entry of a dump.json


class Journal:
    """An append-only file, locked while its process runs. Not thread-safe: the step folder holds the lock."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL_NAME
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o666)
        self._is_torn = False
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, lines: bytes) -> None:
        """Append whole lines. Raises OSError; the next write ends a line that was truncated by it."""
        if self._is_torn:
            lines = b"\n" + lines
        n_written = 0
        try:
            n_written = os.write(self._fd, lines)
            while n_written < len(lines):  # a disk that is nearly full
                n_written += os.write(self._fd, lines[n_written:])
        finally:
            self._is_torn = 0 < n_written < len(lines) or (self._is_torn and n_written == 0)

    def move_to(self, folder: Path) -> None:
        """Note that the file was moved to another folder."""
        self._path = folder / JOURNAL_NAME

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)

    def remove(self) -> None:
        """Close and delete: everything is in the JSON files."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self.close()


def journal_entries(folder: Path | str) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, name, JSON text) of what a process recorded in `folder` before it was killed.

    Kinds are "entry", "stack" (the text is a list of frames) and "parent". A folder that was closed properly has no
    journal and yields nothing. A truncated line, which only the last one can be, is skipped.
    """
    frames: dict[str, str] = {}
    for kind, name, text in _lines(Path(folder) / JOURNAL_NAME):
        if kind == "frames":
            frames[name] = text
        elif kind == "stack":
            if text in frames:
                yield kind, name, frames[text]
        elif kind in ("entry", "parent"):
            yield kind, name, text


def journal_header(folder: Path | str) -> tuple[str, dict] | None:
    """The file that a journal belongs to and its header: ("dump.json", {...}); None without a journal."""
    for kind, name, text in _lines(Path(folder) / JOURNAL_NAME):
        header = json.loads(text)
        return (name, header) if kind == "header" and isinstance(header, dict) else None
    return None


def is_being_written(folder: Path) -> bool:
    """Whether a running process is writing to `folder`."""
    try:
        with open_file(folder / JOURNAL_NAME) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no journal, or no file locks here: assume the folder is finished
        return False
    return False


def _lines(path: Path) -> Iterator[tuple[str, str, str]]:
    if not path.is_file():
        return
    try:
        with open_file(path, "r", encoding="utf-8", errors="replace", newline="\n") as file:
            is_rest = False  # of a line that is too long, and skipped like a truncated one
            while line := file.readline(_LONGEST_LINE):
                if not is_rest and line.endswith("]\n") and (record := _parse(line)):
                    yield record
                is_rest = not line.endswith("\n")
    except OSError as error:
        raise CorruptFile(f"cannot read {path}: {error.strerror or error}", hint="move it away") from error


def _parse(line: str) -> tuple[str, str, str] | None:
    """Kind, name and the text of the value of one line; None if it is not complete."""
    try:
        kind, end = _DECODER.raw_decode(line, 1)
        name, end = _DECODER.raw_decode(line, end + 2)
        text = line[end + 2 : -2]
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return (kind, name, text) if isinstance(kind, str) and isinstance(name, str) else None


_DECODER = json.JSONDecoder()
