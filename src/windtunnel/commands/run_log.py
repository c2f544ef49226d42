"""The end of a rank's run.log, which is as long as the script talks.

run.log ──> its last bytes ──> whole lines
"""

from __future__ import annotations

import os
from pathlib import Path

from windtunnel.foreign_files import open_file

__all__ = ["last_lines"]

_TAIL = 1 << 18  # bytes that are looked at: some thousand lines


def last_lines(log: Path) -> list[str]:
    """The lines at the end of a log; of a long one the first is left out, because it may be half. Raises OSError."""
    with open_file(log) as file:
        start = max(0, os.fstat(file.fileno()).st_size - _TAIL)
        file.seek(start)
        lines = file.read(_TAIL).decode("utf-8", "replace").splitlines()
    return lines[1:] if start else lines
