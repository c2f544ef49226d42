"""Check that a script can be run at all, before anything is started: Python would reject the same files.

train.py | package.module ──> None, or a UsageError that says what is wrong with it
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from windtunnel.errors import UsageError
from windtunnel.foreign_files import read_at_most
from windtunnel.units import MIB

__all__ = ["check_module", "check_script"]

_MOST_SCRIPT = 16 * MIB
_CODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_BLANK = re.compile(rb"^(?:\xef\xbb\xbf)?[ \t\f]*(?:#.*)?\r?$")


def check_script(path: Path) -> None:
    """Raise UsageError for a file that is not a Python script."""
    if not path.exists():
        raise UsageError(
            f"script {path} does not exist", hint="check the path; options of windtunnel come before it"
        )
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="pass a script in it, or use -m for a package")
    hint = "pass a Python script, as in `windtunnel run train.py`"
    try:
        source = read_at_most(path, _MOST_SCRIPT)
        if b"\0" not in source:
            _check_encoding(path, source)
        compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f" at line {error.lineno}" if error.lineno else ""
        raise UsageError(f"{path} is not valid Python{line}: {error.msg}", hint) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path} is not a Python script: {error}", hint) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from error


def _check_encoding(path: Path, source: bytes) -> None:
    """Check the encoding of comments too: Python does so for a file, but `compile` does not for its bytes."""
    encoding = _declared_encoding(source) or "utf-8"
    try:
        source.decode(encoding)
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        declared = f"it declares {encoding}" if _declared_encoding(source) else "it declares no encoding"
        raise UsageError(
            f"{path} is not valid Python at line {line}: the byte 0x{source[error.start]:02x} is not {encoding},"
            f" and {declared}",
            hint="save it as UTF-8, or declare its encoding in the first line, as in `# -*- coding: latin-1 -*-`",
        ) from error
    except LookupError as error:
        raise SyntaxError(f"unknown encoding: {encoding}") from error


def _declared_encoding(source: bytes) -> str | None:
    """Return the encoding declared in the first two lines (PEP 263)."""
    for line in source.split(b"\n", 2)[:2]:
        if found := _CODING.match(line):
            return found[1].decode("ascii")
        if not _BLANK.match(line):
            break
    return None


def check_module(name: str) -> None:
    """Find `package.module` as `python -m` would, without importing any user code."""
    path: list[str] | None = [os.getcwd(), *sys.path]
    parts = name.split(".")
    for i in range(len(parts)):
        full_name = ".".join(parts[: i + 1])
        specs = (finder.find_spec(full_name, path) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None:
            hint = "pass a module name, without .py, that python -m finds from this folder"
            raise UsageError(f"module {full_name!r} does not exist", hint)
        path = list(spec.submodule_search_locations or [])
