"""Read the five facts that MindSpore prints when a dry run ends.

lines of its log ──> PrintedFacts ──> footer of the recording: MindSpore's own numbers, to compare with ours
"""

from __future__ import annotations

import re

__all__ = ["PrintedFacts"]

_FACTS = {
    "device_mib": re.compile(r"^Device \w+ memory size: (\d+)M"),
    "usable_mib": re.compile(r"^MindSpore Used memory size: (\d+)M"),
    "used_peak_mib": re.compile(r"^Used peak memory usage \(without fragments\): (\d+)M"),
    "actual_peak_mib": re.compile(r"^Actual peak memory usage \(with fragments\): (\d+)M"),
}
_USABLE_BY_DEFAULT = 61430  # MiB that MindSpore uses of the 64 GiB device it simulates, whatever the device


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
