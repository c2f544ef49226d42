"""Read files from elsewhere safely: only regular files are opened, and the amount read is limited.

    path ──> open_file ──> a file object           a pipe, a device or a socket is refused at once
    path ──> read_at_most ──> bytes                a longer file is refused, with the limit in the message
    text ──> parse_json, parse_toml ──> values     every failure is a ValueError

A refused file raises an OSError whose `strerror` says why, so callers report it like a missing file.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from pathlib import Path
from typing import IO, Any

from windtunnel.units import format_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["open_file", "parse_json", "parse_toml", "read_at_most"]

_KINDS = (
    (stat.S_ISDIR, "it is a directory"),
    (stat.S_ISFIFO, "it is a pipe"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)
_MORE = 1 << 20  # bytes
_MOST_TOML = 1 << 20  # characters: ten times as many as all our own tables have
_DEEPEST = 100  # levels of nested tables
_MOST_DOTS = 100  # per line: parsing time grows with the square of the parts of a dotted key


def open_file(path: Path | str, mode: str = "rb", **options: Any) -> IO[Any]:
    """Like `open` for reading, but refuses anything that is not a regular file instead of waiting for it."""
    try:
        return open(path, mode, opener=_open_regular, **options)
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error), str(path)) from error


def read_at_most(path: Path | str, most_bytes: int) -> bytes:
    """The whole file; an OSError if it has more than `most_bytes`."""
    with open_file(path) as file:
        # Python allocates a buffer of the size it is asked to read, so ask for the size of the file.
        data = file.read(min(os.fstat(file.fileno()).st_size, most_bytes) + 1)
        while len(data) <= most_bytes and (more := file.read(_MORE)):  # it grows, or its size is not known
            data += more
    if len(data) > most_bytes:
        reason = f"it is larger than {format_bytes(most_bytes)}, the limit for such a file"
        raise OSError(errno.EFBIG, reason, str(path))
    return data


def parse_json(text: str | bytes) -> Any:
    """Decode JSON; values that nest too deeply and numbers with thousands of digits raise a ValueError too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its values nest too deeply") from None


def parse_toml(data: bytes) -> dict[str, Any]:
    """Decode the bytes of a TOML file; anything wrong with them raises a ValueError."""
    text = data.decode("utf-8")
    if len(text) > _MOST_TOML:
        raise ValueError(f"it has {len(text):,} characters; the limit is {_MOST_TOML:,}")
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _MOST_DOTS:
            raise ValueError(f"line {number} has more than {_MOST_DOTS} dots, which no key needs")
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError("its values nest too deeply") from None
    _check_toml(document)
    return document


def _check_toml(document: dict[str, Any]) -> None:
    """Messages print these values, so they must be short: a number may have a million hexadecimal digits."""
    level: list[Any] = [document]
    for _ in range(_DEEPEST):
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
        if any(isinstance(part, int) and not -(1 << 63) <= part < 1 << 64 for part in level):
            raise ValueError("it contains an integer of more than 64 bits")
        level = [part for part in level if isinstance(part, (dict, list))]
        if not level:
            return
    raise ValueError(f"its tables nest more than {_DEEPEST} deep")


def _open_regular(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe would wait until another process writes to it.
    file = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return file
    os.close(file)
    what = next((words for is_kind, words in _KINDS if is_kind(mode)), "it is something else")
    raise OSError(
        errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, f"{what}, not a regular file", str(path)
    )
