"""Frees that wait for other streams: what `record_stream` causes.

free(id) ──> one event per recorded stream ──stream_done──> noticed at the next alloc ──> put back
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING

from windtunnel.memory.allocators.blocks import Block
from windtunnel.memory.allocators.cuda.merge_free import put_back

if TYPE_CHECKING:
    from windtunnel.memory.allocators.cuda.state import CudaState

__all__ = ["StreamUses"]


class StreamUses:
    """Which streams still read which blocks."""

    __slots__ = ("done", "n_streams", "pending", "pending_bytes", "uses", "waiting")

    def __init__(self) -> None:
        self.uses: dict[Hashable, dict[Hashable, None]] = {}  # live id -> other streams, in order
        self.waiting: dict[Hashable, deque[Block]] = {}  # stream -> freed blocks it may read, oldest first
        self.done: dict[Hashable, int] = {}  # stream -> how many of those it has finished with
        self.pending: dict[Block, Hashable] = {}  # freed block that waits -> its id
        self.n_streams: dict[Block, int] = {}  # and how many streams it waits for
        self.pending_bytes = 0

    @property
    def n_waiting(self) -> int:
        return sum(map(len, self.waiting.values()))

    def defer(self, id: Hashable, block: Block) -> None:
        streams = self.uses.pop(id)
        self.pending[block] = id
        self.n_streams[block] = len(streams)
        self.pending_bytes += block.n_bytes
        for stream in streams:
            self.waiting.setdefault(stream, deque()).append(block)

    def mark_done(self, stream: Hashable) -> None:
        # Only a mark: the allocator checks events at the next request.
        if self.waiting.get(stream):
            self.done[stream] = len(self.waiting[stream])

    def finish_frees(self, state: CudaState) -> None:
        """Put back the blocks whose last stream has finished."""
        done, self.done = self.done, {}
        for stream in [stream for stream in self.waiting if stream in done]:
            self._finish(state, stream, done[stream])

    def finish_all(self, state: CudaState) -> None:
        """Wait for every stream, as the allocator does before it gives memory back."""
        self.done = {}
        for stream in list(self.waiting):
            self._finish(state, stream, len(self.waiting[stream]))

    def _finish(self, state: CudaState, stream: Hashable, n_events: int) -> None:
        queue = self.waiting[stream]
        for _ in range(n_events):
            block = queue.popleft()
            self.n_streams[block] -= 1
            if not self.n_streams[block]:
                del self.pending[block], self.n_streams[block]
                self.pending_bytes -= block.n_bytes
                put_back(state, block)
        if not queue:
            del self.waiting[stream]
