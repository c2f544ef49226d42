"""The output folder of a run: created and locked, or rejected with a reason. Only files of windtunnel are ever removed.

    --out DIR, --force ──> an empty folder for report.json and rankR/, locked for this process

The lock is the kernel's (flock), so it ends with the process in any case: a lock file left behind blocks nothing.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from windtunnel.errors import UsageError
from windtunnel.session.launchers.worker_logs import is_worker_log
from windtunnel.whole_file import TEMPORARY_PREFIX

__all__ = ["FolderLock", "discard_empty_run", "prepare_folder"]

_FILES_OF_RUN = (
    "report.json", "report.html", "remat.json", "remat.png", "remat.svg", "advice.json", "advice.png",
    "advice.svg", "trace_view.json", "trace.html",
)  # fmt: skip
_FILES_OF_RANK = (
    "run.log", "recording.arrows", "memory.png", "memory.svg", "memory_block.csv", "snapshot.pickle",
    "trace_view.json", "task.json", "crash.txt",
)  # fmt: skip
_RANK = re.compile(r"rank\d+")
_LOCK = ".windtunnel-lock"
# What a run leaves behind that was killed while it wrote a file (see `whole_file`).
_UNFINISHED = re.compile(re.escape(TEMPORARY_PREFIX) + r"(?P<name>.+)-[a-z0-9_]{8}")


class FolderLock:
    """Keeps other runs out of a folder until it is released or the process ends."""

    def __init__(self, folder: Path) -> None:
        self._path, self._process = folder / _LOCK, os.getpid()
        self._file: int | None = self._open()
        atexit.register(self.release)  # if the caller does not

    def release(self) -> None:
        if self._file is None or os.getpid() != self._process:
            return  # a forked child has the same file open, but is not the run
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        os.close(self._file)
        self._file = None
        atexit.unregister(self.release)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _open(self) -> int:
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The previous holder may have removed the file since it was opened: then try again.
                if os.path.samestat(os.fstat(file), os.stat(self._path)):
                    os.ftruncate(file, 0)
                    os.write(file, b"%d\n" % os.getpid())
                    return file
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno in (errno.ENOLCK, errno.ENOTSUP):
                    return file  # a file system without locks
                os.close(file)
                if error.errno != errno.EWOULDBLOCK:
                    raise
                raise _in_use(self._path) from None
            os.close(file)


def prepare_folder(folder: Path, force: bool) -> FolderLock:
    """Create the output folder and lock it; raises UsageError if it cannot be used. Removes only files of windtunnel."""
    if Path.cwd().is_relative_to(folder.resolve()):
        raise UsageError(  # the output folder is the only one not protected from the script's writes
            f"--out {folder} contains the working directory, whose files the dry run protects",
            hint="choose a separate folder",
        )
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--out {folder} is a file", hint="choose a folder")
        if folder.is_dir() and _content(folder) and not force:
            if (folder / _LOCK).exists():
                FolderLock(folder).release()  # a run in progress is the better reason
            raise UsageError(
                f"--out {folder} is not empty",
                hint="add --force to replace an earlier run in it, or choose another folder",
            )
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
        try:
            _remove_earlier_run(folder)
        except BaseException:
            lock.release()
            raise
        return lock
    except OSError as error:
        raise UsageError(
            f"cannot write to --out {folder}: {error.strerror or error}",
            hint="choose another folder with --out",
        ) from error


def discard_empty_run(folder: Path) -> None:
    """Remove the files of an interrupted run that has no result."""
    with suppress(OSError, UsageError):
        _remove_earlier_run(folder)


def _content(folder: Path) -> bool:
    return any(path.name != _LOCK for path in folder.iterdir())


def _in_use(path: Path) -> UsageError:
    with suppress(OSError, ValueError):
        pid = int(path.read_text(encoding="utf-8"))
        return UsageError(
            f"--out {path.parent} is in use by another run, process {pid}",
            hint="wait for it, or choose another folder with --out",
        )
    return UsageError(
        f"--out {path.parent} is in use by another run", hint="choose another folder with --out"
    )


def _remove_earlier_run(folder: Path) -> None:
    """Remove an earlier run; reject a folder with other files, because here a script's writes are real."""
    found = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    found = [path for path in found if path != folder / _LOCK]
    logs = [path for path in found if is_worker_log(path)]
    foreign = sorted(
        path.relative_to(folder)
        for path in found
        if path not in logs and not _is_of_run(path.relative_to(folder))
    )
    if foreign:
        raise UsageError(
            f"--out {folder} contains {foreign[0]}, which is not from an earlier run; files in it are not protected"
            " from the script",
            hint="choose a separate folder with --out",
        )
    for path in found:
        path.unlink(missing_ok=True)
    for place in {path.parent for path in logs}:
        with suppress(OSError):
            place.rmdir()
    for rank in folder.iterdir():
        if _RANK.fullmatch(rank.name) and rank.is_dir() and not any(rank.iterdir()):
            rank.rmdir()


def _is_of_run(path: Path) -> bool:
    """Whether windtunnel wrote this file; the path is relative to the folder of a run."""
    unfinished = _UNFINISHED.fullmatch(path.name)
    name = unfinished["name"] if unfinished else path.name
    if len(path.parts) == 1:
        return name in _FILES_OF_RUN
    return len(path.parts) == 2 and bool(_RANK.fullmatch(path.parts[0])) and name in _FILES_OF_RANK
