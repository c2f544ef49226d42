"""Where the driver puts a new segment.

    take(n_bytes) ──> the lowest hole that fits, else past everything ──> address

Real drivers keep their own counsel; this is the simplest one, and the one behind the oracle runs.
Which address comes out decides a placement only for torch <= 2.11, and only after segments were
given back. To follow a recorded run, use a `RecordedAddresses`.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable

from windtunnel.errors import UsageError

__all__ = ["AddressSpace", "RecordedAddresses"]


class AddressSpace:
    """First fit over the holes that freed segments left."""

    def __init__(self, first_address: int) -> None:
        self.top = first_address
        self.holes: list[tuple[int, int]] = []  # (start, end), apart from each other, in order

    def take(self, n_bytes: int, align: int = 1) -> int:
        for index, (start, end) in enumerate(self.holes):
            if end - start >= n_bytes and start % align == 0:
                self.holes[index : index + 1] = [(start + n_bytes, end)] if end - start > n_bytes else []
                return start
        start = -(-self.top // align) * align
        self.top = start + n_bytes
        return start

    def skip_past(self, end: int) -> None:
        """Leave the addresses below `end` to segments that came from elsewhere."""
        self.top = max(self.top, end)

    def give_back(self, address: int, n_bytes: int) -> None:
        start, end = address, address + n_bytes
        touching = [hole for hole in self.holes if hole[1] == start or hole[0] == end]
        for hole in touching:
            self.holes.remove(hole)
            start, end = min(start, hole[0]), max(end, hole[1])
        insort(self.holes, (start, end))


class RecordedAddresses:
    """The addresses a recorded run got, in order."""

    def __init__(self, addresses: Iterable[int]) -> None:
        self.left = deque(addresses)

    def take(self, n_bytes: int, align: int = 1) -> int:
        if not self.left:
            raise UsageError(f"the recorded run has no address left for a segment of {n_bytes} bytes")
        return self.left.popleft()

    def skip_past(self, end: int) -> None:
        """Recorded addresses are clear of what was there before."""

    def give_back(self, address: int, n_bytes: int) -> None:
        """Recorded addresses already show what the driver reused."""
