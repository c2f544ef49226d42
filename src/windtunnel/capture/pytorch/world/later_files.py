"""Files that another rank saved before this one began: on a cluster, where ranks run side by side, they are not there yet.

    rank 0 runs to its end, saves snapshot.pt ──> rank 1 begins, looks for snapshot.pt ──> "no such file": both start afresh

From its first collective on, a rank sees what the others have written: they may have met for that. A file that was there
before the job is always seen, and so are folders and caches. A path that is looked for again and again is seen in the end:
the script waits for it.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["LaterFiles"]

_PATIENCE = 20  # looks at one path
_CACHES = ("/.cache/", "/torchinductor_", "/__pycache__", "/site-packages/", "/proc/", "/dev/")
_stat, _scandir = os.stat, os.scandir  # the system's own


class LaterFiles:
    """What this rank does not see before its first collective."""

    def __init__(self, job_began: float, rank_began: float, has_met: Callable[[], bool]) -> None:
        self._job_began, self._rank_began, self._has_met = job_began, rank_began, has_met
        self._looks: Counter[str] = Counter()

    def install(self) -> None:
        """Let the functions of `os` and `io` that look for a file overlook such files."""
        builtins.open = io.open = self._opening(builtins.open)
        for name, make in (("stat", self._asking), ("listdir", self._listing), ("scandir", self._scanning)):
            original = getattr(os, name)
            replacement = make(original)
            for able in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
                if original in able:
                    able.add(replacement)
            setattr(os, name, replacement)

    # -- the functions ---------------------------------------------------------------------------------------

    def _asking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def stat_(path: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(path, *args, **kwargs)
            if not self._has_met() and stat.S_ISREG(found.st_mode) and self._is_later(path, found.st_mtime):
                raise _missing(path)
            return found

        return stat_

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if "r" in mode and "+" not in mode and not self._has_met() and self._is_later_file(file):
                raise _missing(file)
            return original(file, mode, *args, **kwargs)

        return open_

    def _listing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def listdir(path: Any = ".") -> Any:
            names = original(path)
            if self._has_met() or path is None or isinstance(path, int):
                return names
            return [name for name in names if not self._is_later_entry(os.path.join(path, name))]

        return listdir

    def _scanning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scandir(path: Any = ".") -> Any:
            found = original(path)
            if self._has_met() or path is None or isinstance(path, int):
                return found
            with found:
                return _Entries([entry for entry in found if not self._is_later_entry(entry.path)])

        return scandir

    # -- what is later ---------------------------------------------------------------------------------------

    def _is_later(self, path: Any, modified: float) -> bool:
        if isinstance(path, int) or not self._job_began <= modified < self._rank_began:
            return False
        name = os.path.abspath(os.fsdecode(path))
        if any(part in name for part in _CACHES):
            return False
        self._looks[name] += 1
        return self._looks[name] <= _PATIENCE

    def _is_later_file(self, path: Any) -> bool:
        try:
            found = _stat(path)
        except (OSError, ValueError, TypeError):
            return False  # open says what is wrong
        return stat.S_ISREG(found.st_mode) and self._is_later(path, found.st_mtime)

    def _is_later_entry(self, path: Any) -> bool:
        """A folder that was there before the job has something in it that was."""
        try:
            found = _stat(path)
            if not self._is_later(path, found.st_mtime):
                return False
            if not stat.S_ISDIR(found.st_mode):
                return True
            with _scandir(path) as entries:
                return all(entry.stat(follow_symlinks=False).st_mtime >= self._job_began for entry in entries)
        except OSError:
            return False


class _Entries:
    """What os.scandir returns."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _missing(path: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
