"""Whether this thread is inside a recorded call, or in the probe's own work: then no call is recorded.

with quiet: ...   ──> calls inside are not recorded
"""

from __future__ import annotations

import threading

__all__ = ["Quiet"]


class Quiet(threading.local):
    """A counter per thread; truthy while something in this thread must not be recorded."""

    def __init__(self) -> None:
        self.depth = 0

    def __bool__(self) -> bool:
        return self.depth > 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
