"""Where a rank was when a signal killed it: the traceback of Python's fault handler, kept next to its recording.

    rank: watch_for_crashes ──> crash.txt, written by the dying process ──> crash_of ──> "at train.py:41, in save (torch/jit)"

Compiled code that reads the memory of a simulated tensor crashes, because there is none. No Python code can run then,
so the interpreter's fault handler writes the lines; it allocates nothing and takes no lock.
"""

from __future__ import annotations

import faulthandler
import os
import re
from pathlib import Path
from typing import IO

__all__ = ["crash_of", "watch_for_crashes"]

_FILE = "crash.txt"
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_OURS = ("/windtunnel/capture/", "/windtunnel/session/", "/windtunnel/commands/")
_STANDARD_LIBRARY = os.path.dirname(os.__file__).replace(os.sep, "/") + "/"
_open_files: list[IO[bytes]] = []  # the handler writes to the descriptor: it must stay open


def watch_for_crashes(folder: str | Path) -> None:
    """Make a fatal signal write the Python traceback of this process to the folder."""
    try:
        file = open(Path(folder) / _FILE, "wb", buffering=0)  # noqa: SIM115
    except OSError:
        return  # the disk is full: the recording will report it
    _open_files.append(file)
    faulthandler.enable(file, all_threads=False)


def crash_of(folder: str | Path) -> str:
    """Return where the script was, as part of a sentence; empty if unknown. Removes the file."""
    path = Path(folder) / _FILE
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        path.unlink()
    except OSError:
        return ""
    inside = ""
    for frame in _FRAME.finditer(text):
        library = _in_library(frame["file"])
        if library is None:
            return f"at {Path(frame['file']).name}:{frame['line']}" + (f", in {inside}" if inside else "")
        if library:
            inside = f"{frame['function']} of {library}"
    return ""


def _in_library(file: str) -> str | None:
    """Return the path inside its package; empty for our own code, None for the user's code."""
    path = file.replace(os.sep, "/")
    if path.startswith("<") or any(part in path for part in _OURS):
        return ""
    for folder in ("/site-packages/", _STANDARD_LIBRARY):
        if folder in path:
            return path.rpartition(folder)[2]
    return None
