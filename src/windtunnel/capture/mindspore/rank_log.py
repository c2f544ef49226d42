"""What the output of a MindSpore rank tells: why it refused a script, and the five facts it prints when a dry run ends.

    its ERROR lines, the exception's text ──> ErrorLines ──> "the parallel strategy does not fit the number of devices: ..."
    lines of its log ──> PrintedFacts ──> footer of the recording: MindSpore's own numbers, to compare with ours

An exception often only says that something failed; the reason is in a log line before it.
"""

from __future__ import annotations

import re

__all__ = ["ErrorLines", "PrintedFacts"]

_ERROR = re.compile(r"^\[ERROR\] (?P<part>\w+)\([^)]*\):\S+ \[[^\]]*\] (?P<where>\w+)\] (?P<text>.*)")
_FOR_DEVELOPERS = re.compile(r"\s*-{8,}.*", re.DOTALL)
_STRATEGY = "the parallel strategy does not fit the number of devices: "
_FACTS = {
    "device_mib": re.compile(r"^Device \w+ memory size: (\d+)M"),
    "usable_mib": re.compile(r"^MindSpore Used memory size: (\d+)M"),
    "used_peak_mib": re.compile(r"^Used peak memory usage \(without fragments\): (\d+)M"),
    "actual_peak_mib": re.compile(r"^Actual peak memory usage \(with fragments\): (\d+)M"),
}
_USABLE_BY_DEFAULT = 61430  # MiB that MindSpore uses of the 64 GiB device it simulates, whatever the device


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


class PrintedFacts:
    """Collects the facts from lines of output."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}

    def listen(self, line: str) -> bool:
        """Whether the line is one of them."""
        for name, pattern in _FACTS.items():
            match = pattern.match(line)
            if match:
                self._found[name] = int(match[1])
                return True
        return line.startswith("MindSpore memory base address:")

    def as_document(self) -> dict[str, int]:
        return dict(self._found)

    def limit_bytes(self) -> int | None:
        """The limit that the script itself set (runtime.set_memory, max_device_memory); None if it set none."""
        usable = self._found.get("usable_mib")
        return None if usable is None or usable == _USABLE_BY_DEFAULT else usable << 20
