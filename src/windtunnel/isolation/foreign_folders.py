"""Prepare folders of other owners for a layer in a user namespace.

    a folder to cover ──> its foreign folders in which we may write, or that lead to some ──> the same in the upper layer

In a user namespace only one user and one group are mapped. The kernel cannot copy a folder of any other owner to the
upper layer (EOVERFLOW), and it copies every folder on the path of a file that changes: a group's project folders,
`/home`, world-writable folders. So these are created beforehand, owned by us, with the permissions we really have.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

__all__ = ["copy_foreign_folders"]

# Beyond these a write fails with EOVERFLOW, which the report explains. Visiting them takes a tenth of a second.
_MOST_FOLDERS = 20_000
_DEPTH_OUTSIDE, _DEPTH_WRITABLE, _DEPTH_HERE = (
    3,
    8,
    8,
)  # below what is covered, a writable folder, the working folder


def copy_foreign_folders(lower: str, upper: Path, owner: tuple[int, int], here: str) -> None:
    """Create them in `upper`."""
    needed = _needed(lower, owner, here)
    for path in sorted(needed):
        (upper / path).mkdir(exist_ok=True)
    for path in sorted(needed, reverse=True):  # permissions last: until now we must be able to write there
        os.chmod(upper / path, _permissions(os.path.join(lower, path), owner))


def _needed(lower: str, owner: tuple[int, int], here: str) -> set[str]:
    """Paths below `lower` of the folders to create, its top included."""
    needed = {""}
    for path, is_foreign in islice(_folders(lower, owner, here), _MOST_FOLDERS):
        if is_foreign and not os.access(os.path.join(lower, path), os.W_OK):
            continue
        on_the_way = path if is_foreign else os.path.dirname(path)
        while on_the_way not in needed and _is_foreign(os.path.join(lower, on_the_way), owner):
            needed.add(on_the_way)
            on_the_way = os.path.dirname(on_the_way)
    # Every parent of a needed folder must exist too.
    return needed | {str(parent) for path in needed for parent in Path(path).parents if str(parent) != "."}


def _folders(lower: str, owner: tuple[int, int], here: str) -> Iterator[tuple[str, bool]]:
    """Folders below `lower`: all below the working folder, and others that are reached through foreign folders."""
    waiting = deque([("", 0, _DEPTH_OUTSIDE, False)])
    if here.startswith(lower.rstrip("/") + "/"):
        way = Path(os.path.relpath(here, lower))
        yield from (
            (str(path), _is_foreign(os.path.join(lower, path), owner)) for path in (*way.parents[-2::-1], way)
        )
        waiting.appendleft((str(way), 0, _DEPTH_HERE, True))
    while waiting:
        path, depth, deepest, is_here = waiting.popleft()
        full = os.path.join(lower, path)
        if os.access(full, os.W_OK):
            deepest = max(deepest, _DEPTH_WRITABLE)
        try:
            entries = list(os.scandir(full)) if depth < deepest else []
        except OSError:
            continue
        for entry in entries:
            try:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            is_foreign = (info.st_uid, info.st_gid) != owner
            inner = os.path.join(path, entry.name)
            yield inner, is_foreign
            if is_foreign or is_here:
                waiting.append((inner, depth + 1, deepest, is_here))


def _is_foreign(path: str, owner: tuple[int, int]) -> bool:
    info = os.lstat(path)
    return (info.st_uid, info.st_gid) != owner


def _permissions(path: str, owner: tuple[int, int]) -> int:
    if not _is_foreign(path, owner):
        return stat.S_IMODE(os.lstat(path).st_mode)
    bits = ((stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH, os.R_OK), (stat.S_IWUSR, os.W_OK),
            (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH, os.X_OK))  # fmt: skip
    return sum(bit for bit, need in bits if os.access(path, need))
