"""Files from elsewhere: only regular ones are opened, and no more is read than the reader can use.

    path ──> open_file ──> a file object           a pipe, a device or a socket is refused at once
    path ──> read_at_most ──> bytes                a longer file is refused, with the limit in the message
    text ──> parse_json, parse_toml ──> values     everything they can fail with is a ValueError

A refusal is an OSError whose `strerror` says why, so a reader tells it in the words it has for a missing file.
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
_MOST_TOML = 1 << 20  # characters: all our own tables together have a tenth
_DEEPEST = 100  # tables in tables
_MOST_DOTS = 100  # of a line: the parser's time grows with the square of the parts of a dotted key


def open_file(path: Path | str, mode: str = "rb", **options: Any) -> IO[Any]:
    """As `open` for reading, but anything that is no regular file is refused instead of waited for."""
    try:
        return open(path, mode, opener=_open_regular, **options)
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error), str(path)) from error


def read_at_most(path: Path | str, most_bytes: int) -> bytes:
    """The whole file; an OSError if it has more than `most_bytes`."""
    with open_file(path) as file:
        # Python makes room for all that it is asked to read, so it is asked for what there is.
        data = file.read(min(os.fstat(file.fileno()).st_size, most_bytes) + 1)
        while len(data) <= most_bytes and (more := file.read(_MORE)):  # a file that grows, or hides its size
            data += more
    if len(data) > most_bytes:
        reason = f"it has more than {format_bytes(most_bytes)}, the most that is read of such a file"
        raise OSError(errno.EFBIG, reason, str(path))
    return data


def parse_json(text: str | bytes) -> Any:
    """Decode JSON; a ValueError also for values that nest too deeply and for numbers of thousands of digits."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its values nest too deeply") from None


def parse_toml(data: bytes) -> dict[str, Any]:
    """Decode TOML from the bytes of a file; a ValueError for whatever is wrong with them."""
    text = data.decode("utf-8")
    if len(text) > _MOST_TOML:
        raise ValueError(f"it has {len(text):,} characters, and at most {_MOST_TOML:,} are read")
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
    """What is printed in messages must be printable: a number may be written in a million hexadecimal digits."""
    level: list[Any] = [document]
    for _ in range(_DEEPEST):
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
        if any(isinstance(part, int) and not -(1 << 63) <= part < 1 << 64 for part in level):
            raise ValueError("it holds a whole number of more than 64 bits")
        level = [part for part in level if isinstance(part, (dict, list))]
        if not level:
            return
    raise ValueError(f"its tables nest more than {_DEEPEST} deep")


def _open_regular(path: str, flags: int) -> int:
    # Without O_NONBLOCK the open itself would wait until somebody writes to a pipe.
    file = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return file
    os.close(file)
    what = next((words for is_kind, words in _KINDS if is_kind(mode)), "it is something else")
    raise OSError(
        errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, f"{what}, not a regular file", str(path)
    )
