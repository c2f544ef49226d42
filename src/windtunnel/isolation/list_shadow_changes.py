"""List what a run would have changed on the disk, from what the shadow kept.

    base/upper, base/removed, base/moves + the real files ──> FileChange per file, and per removed or moved folder

A file that was written and removed again, or written with the bytes it already had, is not a change.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from windtunnel.isolation.file_changes import FileChange
from windtunnel.isolation.real_files import REAL, find_info, have_same_contents
from windtunnel.isolation.shadow_tree import COPYING
from windtunnel.isolation.true_size import size_of_file

__all__ = ["shadow_changes"]


@dataclass(frozen=True, slots=True)
class _Trees:
    upper: str
    removed: str
    moved: dict[str, str]  # path in the script's view -> real path


def shadow_changes(base: Path) -> list[FileChange]:
    """Everything that the processes with this `base` changed, ordered by path."""
    root = os.path.realpath(base)
    trees = _Trees(f"{root}/upper", f"{root}/removed", {})
    trees.moved.update(_still_moved(trees, _moves(f"{root}/moves")))
    changes = [*_written(trees, "", ""), *_removed(trees, "")]
    return sorted(changes, key=lambda change: change.path)


def _moves(path: str) -> dict[str, str]:
    """Replay the renames: the current path of each real file or folder that was moved -> its real path."""
    if find_info(path) is None:
        return {}
    origins: dict[str, str] = {}
    for line in _read_lines(path):
        old, new, was_real = json.loads(line)
        source = _source_of(old, origins) or (old if was_real else None)
        kept = {at: origin for at, origin in origins.items() if not _is_in(at, new) and not _is_in(at, old)}
        inner = {new + at[len(old) :]: origin for at, origin in origins.items() if _is_in(at, old)}
        origins = kept | inner
        if source is not None:
            origins[new] = source
    return origins


def _still_moved(trees: _Trees, moves: dict[str, str]) -> dict[str, str]:
    """Moves whose target still exists and whose source is gone. The contents of a file must not have changed."""
    found = {}
    for now, source in moves.items():
        here, there = find_info(trees.upper + now), find_info(source)
        if here is None or there is None or find_info(trees.upper + source) is not None:
            continue
        is_same = stat.S_ISDIR(here.st_mode) and stat.S_ISDIR(there.st_mode)
        if _is_hidden(trees, source) and (is_same or have_same_contents(trees.upper + now, source)):
            found[now] = source
    return found


def _written(trees: _Trees, folder: str, compared: str) -> Iterator[FileChange]:
    """Changes in a folder of upper/; `compared` is the real folder that it came from."""
    names = [name for name in sorted(REAL.listdir(trees.upper + folder)) if not name.startswith(COPYING)]
    for name in names:
        path, was_at = f"{folder}/{name}", f"{compared}/{name}"
        actual = trees.upper + path
        info, source = REAL.lstat(actual), trees.moved.get(path)
        if source is not None:
            yield FileChange("moved", path, _size(actual), _size(path), source)
            was_at = source
        if stat.S_ISDIR(info.st_mode):
            if source is None and _is_file(path):
                yield FileChange("removed", path, None, _size(path))
            yield from _written(trees, path, was_at)
        elif source is None and not have_same_contents(actual, was_at):
            before = _size(was_at)
            what = "written" if before is None else "replaced"
            yield FileChange(what, path, size_of_file(actual), before)
    if folder and (compared != folder or _is_hidden(trees, folder)):
        yield from _missing(trees, compared, set(names))


def _missing(trees: _Trees, real_folder: str, names: set[str]) -> Iterator[FileChange]:
    """Former entries of a folder that was removed and created again, or moved."""
    info = find_info(real_folder)
    if info is None or not stat.S_ISDIR(info.st_mode):
        return
    for name in sorted(set(REAL.listdir(real_folder)) - names):
        path = f"{real_folder}/{name}"
        if path not in trees.moved.values():
            yield FileChange("removed", path, None, _size(path))


def _removed(trees: _Trees, folder: str) -> Iterator[FileChange]:
    for name in sorted(REAL.listdir(trees.removed + folder)):
        path = f"{folder}/{name}"
        if name.startswith(COPYING):
            continue
        if stat.S_ISDIR(REAL.lstat(trees.removed + path).st_mode):
            yield from _removed(trees, path)
        elif find_info(trees.upper + path) is None and find_info(path) and path not in trees.moved.values():
            yield FileChange("removed", path, None, _size(path))


def _source_of(path: str, origins: dict[str, str]) -> str | None:
    """The real path of something that was moved, by itself or with a parent folder."""
    at = path
    while at and at != "/":
        if at in origins:
            return origins[at] + path[len(at) :]
        at = os.path.dirname(at)
    return None


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _is_hidden(trees: _Trees, path: str) -> bool:
    """Whether no real file is visible at a path: it or a parent folder was removed."""
    try:
        return stat.S_ISREG(REAL.lstat(trees.removed + path).st_mode)
    except NotADirectoryError:
        return True
    except FileNotFoundError:
        return False


def _is_file(path: str) -> bool:
    info = find_info(path)
    return info is not None and not stat.S_ISDIR(info.st_mode)


def _size(path: str) -> int | None:
    """Bytes of a real file, or of everything in a real folder; None if nothing exists."""
    info = find_info(path)
    if info is None or not stat.S_ISDIR(info.st_mode):
        return None if info is None else info.st_size
    try:
        return sum(_size(f"{path}/{name}") or 0 for name in REAL.listdir(path))
    except PermissionError:
        return 0


def _read_lines(path: str) -> list[str]:
    with REAL.open_stream(path, encoding="utf-8") as lines:
        return lines.readlines()
