"""How large a file would be in a real run: simulated weights have no bytes, and count as if they had.

pickling writes SIMULATED_STORAGE for each storage ──> size_of_file finds them wherever the description ended up
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from typing import IO

__all__ = ["SIMULATED_STORAGE", "size_of_file"]

# Weights on a simulated device have no bytes. A file that describes them contains the number and size of each storage,
# so that the file's real size is known wherever the description ends up: in a pickle, an archive, a copy.
SIMULATED_STORAGE = "windtunnel-storage:{number}:{n_bytes};"
_NAMED_STORAGE = re.compile(rb"windtunnel-storage:([0-9.]{1,40}):(\d{1,20});")
_LONGEST_NAME, _BLOCK = 128, 1 << 24


def size_of_file(path: str) -> int:
    """Bytes of a file; for a file with simulated weights, its size if it held their values."""
    info = os.lstat(path)
    storages: dict[bytes, bytes] = {}  # number -> bytes: two tensors may share one
    if not stat.S_ISREG(info.st_mode):
        return info.st_size
    try:
        with open(path, "rb") as file:
            end = b""
            for block in _blocks(file):
                storages |= _NAMED_STORAGE.findall(end + block)
                end = block[-_LONGEST_NAME:]
    except OSError:
        return info.st_size
    return info.st_size + sum(map(int, storages.values()))


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """The parts of a file that were written: a sparse file may be terabytes long."""
    if not hasattr(os, "SEEK_DATA"):
        yield from iter(lambda: file.read(_BLOCK), b"")
        return
    at = 0
    while True:
        try:
            at = os.lseek(file.fileno(), at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end of the file
                return
            raise
        end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
        while at < end:
            block = os.pread(file.fileno(), min(_BLOCK, end - at), at)
            if not block:
                return
            yield block
            at += len(block)
