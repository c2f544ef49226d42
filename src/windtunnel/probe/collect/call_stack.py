"""Where in the user's program a call was made, as text; a repeated call only walks over its frames.

frames ──> (code, position) of each ──> seen before? ──> the same tuple of lines
"""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path
from types import CodeType, FrameType

__all__ = ["CallStacks"]

_OURS = str(Path(__file__).parents[2])
_OVERRIDES = os.path.join("torch", "overrides.py")


class CallStacks:
    """Turns frames into the lines of stack.json, innermost first; equal stacks are the same tuple object."""

    def __init__(self) -> None:
        self._stacks: dict[tuple, tuple[str, ...]] = {}
        self._lines: dict[tuple[CodeType, int], str | None] = {}

    def here(self, skip: int = 1) -> tuple[str, ...]:
        """Return the stack of the caller's caller; frames of windtunnel itself are left out."""
        frame: FrameType | None = sys._getframe(skip + 1)
        key = []
        while frame is not None:
            key.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        identity = tuple(key)
        found = self._stacks.get(identity)
        if found is None:
            found = self._stacks[identity] = self._lines_of(identity)
        return found

    def _lines_of(self, stack: tuple[tuple[CodeType, int], ...]) -> tuple[str, ...]:
        lines = []
        was_override = False
        for code, position in stack:
            is_override = code.co_filename.endswith(_OVERRIDES)
            # A torch function that calls the modes appears in the stack; without the probe it would not.
            line = None if is_override or was_override else self._line(code, position)
            was_override = is_override
            if line is not None:
                lines.append(line)
        return tuple(lines)

    def _line(self, code: CodeType, position: int) -> str | None:
        key = (code, position)
        if key not in self._lines:
            self._lines[key] = None if code.co_filename.startswith(_OURS) else _text(code, position)
        return self._lines[key]


def _text(code: CodeType, position: int) -> str:
    number = code.co_firstlineno
    for start, end, line in code.co_lines():
        if start <= position < end and line is not None:
            number = line
            break
    source = linecache.getline(code.co_filename, number).strip()
    return f"File {code.co_filename}, line {number}, in {code.co_name}, \n {source}"
