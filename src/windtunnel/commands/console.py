"""The console that a verb prints its result to.

    stream, COLUMNS ──> Console: as wide as the terminal, or unlimited if there is none

A file or a pipe has no width: a sentence stays on one line there, for grep, and a table is as wide as its cells.
"""

from __future__ import annotations

import os
import sys

from windtunnel.report.terminal.plain_console import PlainConsole

__all__ = ["open_console"]

_NO_LIMIT = 10_000  # columns


def open_console(*, stderr: bool = False) -> PlainConsole:
    """Return a console for stdout, or for stderr."""
    stream = sys.stderr if stderr else sys.stdout
    is_given = os.environ.get("COLUMNS", "").isdecimal()
    width = None if is_given or stream.isatty() else _NO_LIMIT
    return PlainConsole(stderr=stderr, width=width)
