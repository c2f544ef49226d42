"""The data that public scripts read: formats and sizes they expect, made here, few samples, no network.

DATA[name](folder) fills the folder; `data_folder(cache, name)` makes it once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.public_programs.data import checkpoints, graphs, images, stand_ins, text

__all__ = ["DATA", "data_folder"]

DATA: dict[str, Callable[[Path], None]] = (
    images.DATA | text.DATA | graphs.DATA | checkpoints.DATA | stand_ins.DATA
)


def data_folder(cache: Path, place: str) -> Path:
    """`name` or `name/file`: made if it is not there."""
    name = place.partition("/")[0]
    folder = cache / name
    done = cache / f".{name}.made"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        DATA[name](folder)
        done.touch()
    return cache / place
