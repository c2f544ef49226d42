"""Why MindSpore refused a script, in one sentence.

    its ERROR lines, the exception's text ──> "the parallel strategy does not fit the number of cards: ..."

The exception often only says that something failed; the reason stands in a log line before it.
"""

from __future__ import annotations

import re

__all__ = ["ErrorLines"]

_ERROR = re.compile(r"^\[ERROR\] (?P<part>\w+)\([^)]*\):\S+ \[[^\]]*\] (?P<where>\w+)\] (?P<text>.*)")
_FOR_DEVELOPERS = re.compile(r"\s*-{8,}.*", re.DOTALL)
_STRATEGY = "the parallel strategy does not fit the number of cards: "


class ErrorLines:
    """Listens to lines of output; the first error of parallel training, or of anything, is the reason."""

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
        """A failed script's error without what is for MindSpore's developers, and with its reason."""
        short = _FOR_DEVELOPERS.sub("", error).rstrip(" .:")
        if self._parallel:
            return f"{_STRATEGY}{self._parallel}".rstrip(". ")
        if self._other and len(short) < 80:  # it says too little by itself
            return f"{short}: {self._other}".rstrip(". ")
        return short
