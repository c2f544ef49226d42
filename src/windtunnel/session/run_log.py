"""The end of a rank's run.log, which may be long.

run.log ──> its last bytes ──> whole lines
"""

from __future__ import annotations

import os
from pathlib import Path

from windtunnel.foreign_files import open_file

__all__ = ["last_lines"]

_TAIL = 1 << 18  # bytes that are read: a few thousand lines


def last_lines(log: Path) -> list[str]:
    """Return the lines at the end of a log, without a first line that may be cut. Raises OSError."""
    with open_file(log) as file:
        start = max(0, os.fstat(file.fileno()).st_size - _TAIL)
        file.seek(start)
        lines = file.read(_TAIL).decode("utf-8", "replace").splitlines()
    return lines[1:] if start else lines
