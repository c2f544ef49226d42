"""Write a file whole or not at all: neither a reader nor a kill at any moment leaves a half-written one.

content ──> hidden temporary file in the same folder ──> renamed to its final name
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import BinaryIO

__all__ = ["TEMPORARY_PREFIX", "replace_file", "whole_file", "write_all"]

# Hidden, and without one of our suffixes: a file left behind by a kill is never mistaken for data.
TEMPORARY_PREFIX = ".unfinished-"
_BUFFERS_PER_WRITE = 16  # the smallest limit POSIX allows
_numbers = count()  # a signal handler may write a file while another one is being written


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a stream to write to. If anything fails, the file that had this name before is left as it was."""
    handle, temporary = tempfile.mkstemp(prefix=f"{TEMPORARY_PREFIX}{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        os.chmod(temporary, 0o644)  # mkstemp makes files that only their owner can read
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def replace_file(folder: Path | str, name: str, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write `parts` as `folder/name`, replacing an earlier file. On OSError the earlier file is left as it was.

    Takes half the system calls of `whole_file`: a probe writes thousands of small files.
    """
    temporary = f"{folder}/{TEMPORARY_PREFIX}{os.getpid()}-{next(_numbers)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        try:
            write_all(fd, parts)
        finally:
            os.close(fd)
        os.rename(temporary, f"{folder}/{name}")
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def write_all(fd: int, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write buffers one after another, without copying them, in as many system calls as it takes."""
    parts = iter(parts)
    while batch := list(islice(parts, _BUFFERS_PER_WRITE)):
        rest = [memoryview(part).cast("B") for part in batch if len(part)]
        while rest:
            n_written = os.writev(fd, rest)
            while rest and n_written >= len(rest[0]):
                n_written -= len(rest.pop(0))
            if n_written:  # the kernel takes 2 GiB at a time, and a disk may fill up
                rest[0] = rest[0][n_written:]
