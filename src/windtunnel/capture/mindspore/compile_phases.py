"""How long each phase of MindSpore's graph compiler took, by what it compiled.

    MS_JIT=COMPILE_PROFILE:1 ──> lines of its output, between two marks of ours ──> (cell, phase, microseconds)

The compiler prints a tree of phases for every graph, in seconds of wall time. Of a cell inside the graph it says nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["CompilePhases", "compile_profile", "marked_compile"]

_SETTING = "COMPILE_PROFILE"
_BEGIN, _END = "windtunnel: begin to compile ", "windtunnel: end of compile"
_TOTAL = re.compile(r"^TotalTime = ([0-9.e+-]{1,30})")
_PHASE = re.compile(r"^\[([\w.-]{1,80})\]: ([0-9.e+-]{1,30})")
_LEAST = 0.01  # of the total: shorter phases are left out


def compile_profile(settings: str) -> dict[str, str]:
    """The variable that makes the compiler print its phases; the user's own settings stay."""
    kept = [word for word in settings.split(",") if word.strip() and _SETTING not in word]
    return {"MS_JIT": ",".join([*kept, f"{_SETTING}:1"])}


@contextmanager
def marked_compile(name: str) -> Iterator[None]:
    """In the script's process: mark in its output what is compiled. C++ writes to the same file, not through Python."""
    os.write(1, f"{_BEGIN}{name}\n".encode())
    try:
        yield
    finally:
        os.write(1, f"{_END}\n".encode())


class CompilePhases:
    """Collects the phases from lines of output."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, int]] = []
        self._names: list[str] = []
        self._total: float | None = None  # while a tree is printed

    def listen(self, line: str) -> bool:
        """Whether the line is part of it; the program's own output is not."""
        if line.startswith(_BEGIN):
            self._names.append(line[len(_BEGIN) :])
            return True
        if line == _END and self._names:
            self._names.pop()
            self._total = None
            return True
        if not self._names:
            return False
        if total := _TOTAL.match(line):
            self._total = _seconds(total[1])
        elif self._total is not None and (phase := _PHASE.match(line)):
            seconds = _seconds(phase[2])
            if seconds >= _LEAST * self._total:
                self.found.append((self._names[-1], phase[1], round(seconds * 1e6)))
        return self._total is not None


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
