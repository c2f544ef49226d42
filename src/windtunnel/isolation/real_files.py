"""The operating system's file functions, as they were before they were redirected.

    os, io ──> REAL ──> the code that implements the redirection

Import this module before `install_shadow`: it keeps the functions that it finds when it is imported.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
import sys
from contextlib import suppress
from types import SimpleNamespace

__all__ = [
    "REAL",
    "copy_contents",
    "error",
    "find_info",
    "have_same_contents",
    "move_entry",
    "path_of_descriptor",
    "remove_entry",
]

REAL = SimpleNamespace(
    **{name: value for name, value in vars(os).items() if callable(value) and not name.startswith("_")}
)
REAL.open_stream = io.open
REAL.FileIO = io.FileIO
REAL.open_code = io.open_code

_CHUNK = 1 << 24
_FICLONE = 0x40049409  # Linux: share the blocks with another file until one of the two is written


def error(number: int, path: str | None = None) -> OSError:
    """The exception that a failing file function raises."""
    return OSError(number, os.strerror(number), path)


def find_info(path: str) -> os.stat_result | None:
    """`lstat` of a real path; None where nothing exists."""
    try:
        return REAL.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def path_of_descriptor(fd: int) -> str:
    """The real path of an open file; for a pipe, a socket or a removed file, a text that is not a path."""
    if sys.platform == "darwin":
        return os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return REAL.readlink(f"/proc/self/fd/{fd}")


def copy_contents(source: str, target: str, *, exclusive: bool = True) -> None:
    """Copy the bytes of one real file to another, with its permissions, owner and times."""
    read = REAL.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if exclusive else os.O_TRUNC)
        write = REAL.open(target, flags, 0o600)
        try:
            if not _share_blocks(read, write):
                while chunk := os.read(read, _CHUNK):
                    _write_all(write, chunk)
            info = os.fstat(read)
            with suppress(PermissionError):  # only root may change the owner
                REAL.fchown(write, info.st_uid, info.st_gid)
            REAL.fchmod(write, stat.S_IMODE(info.st_mode))
            REAL.utime(write, ns=(info.st_atime_ns, info.st_mtime_ns))
        finally:
            os.close(write)
    finally:
        os.close(read)


def have_same_contents(one: str, other: str) -> bool:
    """Whether two real paths are links to the same target, or readable files with the same bytes."""
    first, second = find_info(one), find_info(other)
    if first is None or second is None or stat.S_IFMT(first.st_mode) != stat.S_IFMT(second.st_mode):
        return False
    if stat.S_ISLNK(first.st_mode):
        return REAL.readlink(one) == REAL.readlink(other)
    if not stat.S_ISREG(first.st_mode) or first.st_size != second.st_size:
        return False
    try:
        with REAL.open_stream(one, "rb") as a, REAL.open_stream(other, "rb") as b:
            while chunk := a.read(_CHUNK):
                if chunk != b.read(_CHUNK):
                    return False
    except OSError:
        return False
    return True


def move_entry(source: str, target: str) -> None:
    """Rename a real file or folder, even to another file system.

    Landlock's first version returns EXDEV for every move between folders, so this is not rare.
    """
    try:
        REAL.rename(source, target)
    except OSError as problem:
        if problem.errno != errno.EXDEV:
            raise
        info = REAL.lstat(source)
        if stat.S_ISDIR(info.st_mode):
            with suppress(FileExistsError):
                REAL.mkdir(target)
            for name in REAL.listdir(source):
                move_entry(f"{source}/{name}", f"{target}/{name}")
            REAL.chmod(target, stat.S_IMODE(info.st_mode))
            REAL.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
            REAL.rmdir(source)
            return
        if stat.S_ISLNK(info.st_mode):
            with suppress(FileNotFoundError):
                REAL.unlink(target)
            REAL.symlink(REAL.readlink(source), target)
        else:
            copy_contents(source, target, exclusive=False)
        REAL.unlink(source)


def remove_entry(path: str) -> None:
    """Remove a real file, or a folder with everything in it."""
    if not stat.S_ISDIR(REAL.lstat(path).st_mode):
        REAL.unlink(path)
        return
    for name in REAL.listdir(path):
        remove_entry(f"{path}/{name}")
    REAL.rmdir(path)


def _share_blocks(read: int, write: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        fcntl.ioctl(write, _FICLONE, read)
    except OSError:
        return False  # most file systems cannot
    return True


def _write_all(fd: int, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(fd, rest) :]
