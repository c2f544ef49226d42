"""List what a script would have changed, from the folders that received its writes.

    upper folders of the layer, the real files below ──> FileChange of every file written, replaced, moved or removed

This runs outside the layer, after the script: the real files are unchanged there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from windtunnel.isolation.file_changes import FileChange
from windtunnel.isolation.real_files import have_same_contents
from windtunnel.isolation.true_size import size_of_file

__all__ = ["layer_changes", "written_content"]


def layer_changes(folders: Mapping[str, str]) -> list[FileChange]:
    """`folders`: the parts of each overlay, and the folder it covers."""
    return [change for parts, lower in folders.items() for change in _Overlay(Path(parts), lower).changes()]


class _Overlay:
    """One overlay: its upper folder, and the folder it covers."""

    def __init__(self, parts: Path, lower: str) -> None:
        self._upper, self._lower = parts / "upper", lower

    def changes(self) -> Iterator[FileChange]:
        lower = self._lower.rstrip("/")
        found = list(self._walk(str(self._upper), lower, lower, False))
        moved = {change.moved_from for change in found if change.moved_from is not None}
        for change in found:
            places = (change.path, *map(str, Path(change.path).parents))
            if change.what != "removed" or moved.isdisjoint(places):  # a move leaves its old path empty
                yield change

    def _walk(self, upper: str, lower: str, shown: str, is_opaque: bool) -> Iterator[FileChange]:
        entries = _entries(upper)
        if is_opaque and os.path.isdir(lower):
            for name in sorted(set(os.listdir(lower)) - {entry.name for entry in entries}):
                yield FileChange("removed", f"{shown}/{name}", None, _total(f"{lower}/{name}"))
        for entry in entries:
            low, path = f"{lower}/{entry.name}", f"{shown}/{entry.name}"
            yield from self._entry(entry.path, low, path)

    def _entry(self, up: str, low: str, path: str) -> Iterator[FileChange]:
        is_now, was = os.lstat(up), _lstat(low)
        if stat.S_ISCHR(is_now.st_mode) and is_now.st_rdev == 0:  # overlayfs marks a removed entry this way
            if was is not None:
                yield FileChange("removed", path, None, _total(low))
        elif stat.S_ISDIR(is_now.st_mode):
            yield from self._folder(up, low, path, was)
        elif not (stat.S_ISREG(is_now.st_mode) or stat.S_ISLNK(is_now.st_mode)):
            return  # a socket or a pipe has no contents
        elif _attribute(up, "metacopy") is not None and (origin := self._origin(up, low)) not in (None, low):
            before = None if was is None else _total(low)
            what = "moved" if self._is_gone(origin) else "written" if was is None else "replaced"
            yield FileChange(
                what, path, _total(origin), before, moved_from=origin if what == "moved" else None
            )
        elif was is None:
            yield FileChange("written", path, size_of_file(up), None)
        elif _attribute(up, "metacopy") is not None or have_same_contents(up, low):
            old, new = ((i.st_mode, i.st_uid, i.st_gid, i.st_mtime_ns) for i in (was, is_now))
            if old != new:
                yield FileChange("metadata", path, was.st_size, was.st_size)
        else:
            yield FileChange("replaced", path, size_of_file(up), _total(low))

    def _folder(self, up: str, low: str, path: str, was: os.stat_result | None) -> Iterator[FileChange]:
        source = self._origin(up, low)
        if source is not None:
            yield FileChange("moved", path, _total(source), None, moved_from=source)
            yield from self._walk(up, source, path, False)
            return
        is_opaque = _attribute(up, "opaque") == b"y"
        if was is not None and not stat.S_ISDIR(was.st_mode):
            yield FileChange("removed", path, None, was.st_size)
        yield from self._walk(up, low, path, is_opaque)

    def content(self, path: str) -> str:
        """The real path of the bytes that the script sees at this path."""
        up = str(self._upper / os.path.relpath(path, self._lower))
        return up if _attribute(up, "metacopy") is None else self._origin(up, path) or path

    def _origin(self, up: str, low: str) -> str | None:
        """The real path that something in the upper folder was renamed or linked from."""
        redirect = _attribute(up, "redirect")
        if redirect is None:
            return None
        name = os.fsdecode(redirect)
        return self._lower.rstrip("/") + name if name.startswith("/") else f"{os.path.dirname(low)}/{name}"

    def _is_gone(self, origin: str) -> bool:
        """Whether the script no longer sees what is really at this path."""
        at, is_opaque = str(self._upper), False
        for name in os.path.relpath(origin, self._lower).split(os.sep):
            at = f"{at}/{name}"
            info = _lstat(at)
            if info is None:
                return is_opaque
            if not stat.S_ISDIR(info.st_mode):
                return _attribute(at, "metacopy") is None
            is_opaque = is_opaque or _attribute(at, "opaque") == b"y"
        return True


def written_content(folders: Mapping[str, str], path: str) -> str:
    """The real path of the bytes that a script in a layer wrote at this path."""
    covering = [
        (lower, parts) for parts, lower in folders.items() if path.startswith(lower.rstrip("/") + "/")
    ]
    lower, parts = max(covering, key=lambda pair: len(pair[0]))
    return _Overlay(Path(parts), lower).content(path)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        found = os.scandir(folder)
    except PermissionError:
        os.chmod(folder, stat.S_IRWXU)
        found = os.scandir(folder)
    with found:
        return sorted(found, key=lambda entry: entry.name)


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _attribute(path: str, name: str) -> bytes | None:
    for space in ("trusted", "user"):  # root's, and a user namespace's
        try:
            return os.getxattr(path, f"{space}.overlay.{name}", follow_symlinks=False)
        except OSError:
            continue
    return None


def _total(path: str) -> int:
    """Bytes of a file, or of all files in a folder."""
    info = _lstat(path)
    if info is None:
        return 0
    if not stat.S_ISDIR(info.st_mode):
        return info.st_size
    inner = (_lstat(os.path.join(top, name)) for top, _, names in os.walk(path) for name in names)
    return sum(i.st_size for i in inner if i is not None)
