"""Write a whole file or none of it: a reader, or a kill at any moment, never meets a half-written one.

buffers ──> hidden temporary file in the same folder ──> rename over the final name
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from itertools import count, islice
from pathlib import Path

__all__ = ["TEMPORARY_PREFIX", "replace_file", "write_all"]

# Hidden, and with no suffix of ours: what a kill leaves behind is never taken for data.
TEMPORARY_PREFIX = ".unfinished-"
_numbers = count()  # a signal handler may write a file in the middle of writing one


def replace_file(folder: Path | str, name: str, parts: Iterable[bytes | memoryview]) -> None:
    """Write `parts` as `folder/name`, in place of what was there. Raises OSError and leaves the old file."""
    temporary = f"{folder}/{TEMPORARY_PREFIX}{os.getpid()}-{next(_numbers)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        try:
            write_all(fd, parts)
        finally:
            os.close(fd)
        os.rename(temporary, f"{folder}/{name}")
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_all(fd: int, parts: Iterable[bytes | memoryview]) -> None:
    """Write buffers one after another, however many system calls it takes; none of them is copied."""
    parts = iter(parts)
    while batch := list(islice(parts, _BUFFERS_PER_WRITE)):
        rest = [memoryview(part).cast("B") for part in batch if len(part)]
        while rest:
            n_written = os.writev(fd, rest)
            while rest and n_written >= len(rest[0]):
                n_written -= len(rest.pop(0))
            if n_written:  # the kernel takes 2 GiB at a time, and a disk may fill up
                rest[0] = rest[0][n_written:]


_BUFFERS_PER_WRITE = 16  # every system takes that many
