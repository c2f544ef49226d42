"""List the entries of a folder in the shadow: those the run wrote, merged with the real ones.

listdir, scandir ──> Folder in the Tree ──> names, or Entry in place of os.DirEntry
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator

from windtunnel.isolation.real_files import REAL, error, path_of_descriptor
from windtunnel.isolation.shadow_calls import naming, place_to_read
from windtunnel.isolation.shadow_tree import AnyPath, Place, Tree, as_text

__all__ = ["Entry", "list_names", "scan"]


def list_names(tree: Tree, path: AnyPath | int | None = None) -> list[str] | list[bytes]:
    if tree.is_untouched():
        return REAL.listdir(path)
    text, _ = _folder_to_list(tree, path)
    place = _to_list(tree, text)
    folder = tree.folder(place.path)
    names: list[str]
    names = REAL.listdir(place.actual) if folder.is_plain else [entry.name for entry in tree.entries(folder)]
    return [os.fsencode(name) for name in names] if _is_bytes(path) else names


def scan(tree: Tree, path: AnyPath | int | None = None) -> Iterator[Entry | os.DirEntry]:
    if tree.is_untouched():
        return REAL.scandir(path)
    text, prefix = _folder_to_list(tree, path)
    place = _to_list(tree, text)
    entries = tree.entries(tree.folder(place.path))
    return _Scan(Entry(tree, place.path, prefix, _is_bytes(path), entry) for entry in entries)


class Entry:
    """An entry of a scanned folder, with the attributes and methods of os.DirEntry."""

    __slots__ = ("_entry", "_folder", "_tree", "name", "path")

    def __init__(self, tree: Tree, folder: str, prefix: str, is_bytes: bool, entry: os.DirEntry) -> None:
        self.name, self.path = entry.name, prefix + entry.name
        if is_bytes:
            self.name, self.path = os.fsencode(self.name), os.fsencode(self.path)
        self._entry, self._folder, self._tree = entry, folder, tree

    def inode(self) -> int:
        return self._entry.inode()

    def is_symlink(self) -> bool:
        return self._entry.is_symlink()

    def is_junction(self) -> bool:
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks, self._entry.is_dir)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks, self._entry.is_file)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        if follow_symlinks and self._entry.is_symlink():
            return self._behind_link()
        return self._entry.stat(follow_symlinks=False)

    def __fspath__(self) -> str | bytes:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def _is(self, test: Callable[[int], bool], follow: bool, ask: Callable[..., bool]) -> bool:
        if not (follow and self._entry.is_symlink()):
            return ask(follow_symlinks=False)
        try:
            return test(self._behind_link().st_mode)
        except FileNotFoundError:
            return False

    def _behind_link(self) -> os.stat_result:
        """Follow a link in the merged tree, not on the disk."""
        path = f"{self._folder}/{self._entry.name}"
        return naming(self.path, None, lambda: place_to_read(self._tree, path, None, follow=True)).info


class _Scan:
    """An iterator that can be closed, as os.scandir returns."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _folder_to_list(tree: Tree, path: AnyPath | int | None) -> tuple[str, str]:
    """The folder's path, and what its entries' paths begin with."""
    if isinstance(path, int):
        return tree.visible(path_of_descriptor(path)), ""
    text = "." if path is None else as_text(path)
    return text, os.path.join(text, "")


def _to_list(tree: Tree, path: str) -> Place:
    place = place_to_read(tree, path, None, follow=True)
    if not place.is_folder:
        raise error(errno.ENOTDIR)
    return place


def _is_bytes(path: object) -> bool:
    return isinstance(path, bytes)
