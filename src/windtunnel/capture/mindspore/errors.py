"""Explain in one sentence why MindSpore refused a script.

    its ERROR lines, the exception's text ──> "the parallel strategy does not fit the number of devices: ..."

The exception often only says that something failed; the reason is in a log line before it.
"""

from __future__ import annotations

import re

__all__ = ["ErrorLines"]

_ERROR = re.compile(r"^\[ERROR\] (?P<part>\w+)\([^)]*\):\S+ \[[^\]]*\] (?P<where>\w+)\] (?P<text>.*)")
_FOR_DEVELOPERS = re.compile(r"\s*-{8,}.*", re.DOTALL)
_STRATEGY = "the parallel strategy does not fit the number of devices: "


class ErrorLines:
    """Reads lines of output; the first error of parallel training, or else the first error, is the reason."""

    def __init__(self) -> None:
        self._parallel = self._other = ""

    def listen(self, line: str) -> None:
        found = _ERROR.match(line)
        if found is None:
            return
        if found["part"] == "PARALLEL":
            self._parallel = self._parallel or found["text"].strip()
        else:
            self._other = self._other or found["text"].strip()

    def explain(self, error: str) -> str:
        """A failed script's error with its reason, and without the part for MindSpore's developers."""
        short = _FOR_DEVELOPERS.sub("", error).rstrip(" .:")
        if self._parallel:
            return f"{_STRATEGY}{self._parallel}".rstrip(". ")
        if self._other and len(short) < 80:  # it says too little on its own
            return f"{short}: {self._other}".rstrip(". ")
        return short
