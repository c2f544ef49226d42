"""Frees that wait for other streams: what `record_stream` causes.

    free(id) ──> one event per recorded stream ──stream_done──> noticed at the next alloc ──> put back
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING

from windtunnel.memory.cuda_blocks import Block

if TYPE_CHECKING:
    from windtunnel.memory.cuda_allocator import CudaAllocator

__all__ = ["StreamUses"]


class StreamUses:
    """Which streams still read which blocks."""

    __slots__ = ("done", "pending", "pending_bytes", "uses", "waiting")

    def __init__(self) -> None:
        self.uses: dict[Hashable, dict[int, None]] = {}  # live id -> other streams, in order of first use
        self.waiting: dict[int, deque[Block]] = {}  # stream -> freed blocks it may still read, oldest first
        self.done: dict[int, int] = {}  # stream -> how many of those it has finished with
        self.pending: dict[Block, list] = {}  # freed block -> [streams it waits for, its id]
        self.pending_bytes = 0

    @property
    def n_waiting(self) -> int:
        return sum(map(len, self.waiting.values()))

    def defer(self, id: Hashable, block: Block) -> None:
        streams = self.uses.pop(id)
        self.pending[block] = [len(streams), id]
        self.pending_bytes += block.n_bytes
        for stream in streams:
            self.waiting.setdefault(stream, deque()).append(block)

    def mark_done(self, stream: int) -> None:
        # Only a mark: the allocator looks at events when it is next asked for memory.
        if self.waiting.get(stream):
            self.done[stream] = len(self.waiting[stream])

    def finish_frees(self, allocator: CudaAllocator) -> None:
        """Put back the blocks whose last stream has finished."""
        done, self.done = self.done, {}
        for stream in [stream for stream in self.waiting if stream in done]:
            self._finish(allocator, stream, done[stream])

    def finish_all(self, allocator: CudaAllocator) -> None:
        """Wait for every stream, as the allocator does before it gives memory back."""
        self.done = {}
        for stream in list(self.waiting):
            self._finish(allocator, stream, len(self.waiting[stream]))

    def _finish(self, allocator: CudaAllocator, stream: int, n_events: int) -> None:
        queue = self.waiting[stream]
        for _ in range(n_events):
            block = queue.popleft()
            entry = self.pending[block]
            entry[0] -= 1
            if not entry[0]:
                del self.pending[block]
                self.pending_bytes -= block.n_bytes
                allocator.put_back(block)
        if not queue:
            del self.waiting[stream]
