"""The door from capture to an allocator: what a running program may ask about its memory.

    torch.cuda.memory_allocated() ──> MemoryCounters ──> (outside of this package) an allocator that follows the recording

Capture writes events and knows no allocator. `session` opens the door: it passes a `MakeCounters` that gives a model of
`memory`, so the one arrow from capture to memory at run time has a name and a type here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from windtunnel.events.file import RecordingWriter

__all__ = ["MakeCounters", "MemoryCounters"]


class MemoryCounters(Protocol):
    """What the program may ask about the memory of a device."""

    def read(self, device: int) -> dict[str, int]:
        """Bytes now and at most: allocated, reserved, peak_allocated, peak_reserved."""

    def reset_peak(self, device: int) -> None:
        """Count the peaks from now on."""


MakeCounters = Callable[
    [RecordingWriter, Path], MemoryCounters
]  # for the recording that is being written there
