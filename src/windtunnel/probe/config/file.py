"""The config.json of a probe as plain values, or one sentence about what is wrong with the file.

path ──> regular file? size? UTF-8? ──> JSON without duplicate keys ──> dict
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from windtunnel.errors import ProbeConfigError
from windtunnel.foreign_files import open_file

__all__ = ["ConfigWatch", "read_config_file"]

LARGEST_BYTES = (
    4 * 1024 * 1024
)  # a config is one page long; anything larger is another file passed by mistake


class ConfigWatch:
    """Says whether a config file has changed since the last call."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._seen = self._state()

    def changed(self) -> bool:
        """Return whether the file changed since the last call: its time, its size, or that it exists."""
        state = self._state()
        different = state != self._seen
        self._seen = state
        return different

    def _state(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


class _DuplicateKey(ValueError):
    """The same key twice in one object: Python's JSON reader would silently keep the last one."""


def read_config_file(path: Path) -> dict[str, object]:
    """Return the object in a JSON file; ProbeConfigError names the file, the place and what is wrong."""
    text = _read_text(path)
    try:
        value = json.loads(text, object_pairs_hook=_object_without_duplicate_keys)
    except json.JSONDecodeError as error:
        raise ProbeConfigError(
            f"{path} is not valid JSON: line {error.lineno}, column {error.colno}: "
            f"{_what_was_found(text, error)}",
            hint="JSON has no comments, no trailing commas and only double quotes",
        ) from None
    except RecursionError:
        raise ProbeConfigError(f"{path} is nested too deeply for a config file") from None
    except _DuplicateKey as error:
        raise ProbeConfigError(f"{path}: duplicate key {error}", hint="remove one") from None
    except ValueError:  # Python limits the number of digits of an integer
        raise ProbeConfigError(f"{path} contains a number with thousands of digits") from None
    if not isinstance(value, dict):
        raise ProbeConfigError(
            f"{path} contains {_kind(value)}, but a config must be an object",
            hint='write {"task": "statistics", "dump_path": "./dump_path", ...}',
        )
    return value


def _read_text(path: Path) -> str:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise ProbeConfigError(
                f"config path {path} is a directory", hint=f"pass the file, such as {path / 'config.json'}"
            )
        if not stat.S_ISREG(status.st_mode):
            raise ProbeConfigError(f"config path {path} is a device or a pipe, not a regular file")
        if status.st_size > LARGEST_BYTES:
            raise ProbeConfigError(
                f"{path} has {status.st_size} bytes, more than the limit of {LARGEST_BYTES} for a config",
                hint="check that it is the right file",
            )
        with open_file(path) as file:
            data = file.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise ProbeConfigError(
            f"config file {path} does not exist",
            hint=f"relative paths start at the working directory, {os.getcwd()}",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise ProbeConfigError(f"config file {path!s} cannot be read: {reason}") from None
    try:
        return data.decode("utf-8-sig")  # some editors put a byte order mark first
    except UnicodeDecodeError as error:
        raise ProbeConfigError(
            f"{path} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}",
            hint="save it as UTF-8",
        ) from None


def _object_without_duplicate_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKey(f'"{key[:60]}"')
        found[key] = value
    return found


def _what_was_found(text: str, error: json.JSONDecodeError) -> str:
    reason = error.msg[0].lower() + error.msg[1:]
    rest = text[error.pos : error.pos + 20].splitlines()
    found = repr(rest[0]) if rest and rest[0] else "the end of the line" if rest else "the end of the file"
    return f"{reason}, found {found}"


def _kind(value: object) -> str:
    names = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "true or false"}
    return names.get(type(value), "null")
