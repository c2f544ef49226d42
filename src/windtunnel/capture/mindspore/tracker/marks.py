"""Write and read marks: what MindSpore's tracker does not know, such as modules, phases, steps and tensor names.

    the script's process ──> MarkWriter ──> marks.jsonl ──> read_marks ──> Mark

A mark has the tracker's tick at which it happened, so both can be merged in order. Lines are short lists:
`[12, "enter", "layers.0.mlp", 0]`. The file is flushed at every step, so a killed program leaves its marks up to that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from windtunnel.foreign_files import open_file

__all__ = ["Mark", "MarkWriter", "read_marks"]


class Mark(NamedTuple):
    """One line of the file.

    enter module, is_again | exit | backward 1 or 0 | optimizer 1 or 0 | step | graph_step | read |
    build what, microseconds | tensor address, role, name | names of the model | end outcome
    """

    tick: int
    kind: str
    values: tuple[Any, ...] = ()


class MarkWriter:
    """Appends marks; `tick` reads the tracker's clock."""

    def __init__(self, path: Path, tick: Callable[[], int]) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._tick = tick

    def add(self, kind: str, *values: Any) -> None:
        if not self._file.closed:
            self._file.write(json.dumps([self._tick(), kind, *values]) + "\n")

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_marks(path: Path) -> Iterator[Mark]:
    """Every complete line; a line that cannot be parsed is where the program was killed."""
    try:
        with open_file(path) as file:
            lines = file.read().decode("utf-8", "backslashreplace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            tick, kind, *values = json.loads(line)
            mark = Mark(int(tick), str(kind), tuple(values))
        except (ValueError, TypeError, RecursionError):
            return
        yield mark
