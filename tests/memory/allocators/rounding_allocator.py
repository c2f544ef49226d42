"""A stand-in allocator small enough to check by head: sizes round up to 512, segments never shrink.

It lets the analyses be tested with exact numbers, apart from the rules of any real allocator.
"""

from __future__ import annotations

from windtunnel.errors import PredictedOutOfMemory
from windtunnel.memory.allocators.records import AllocatorStats


class RoundingAllocator:
    name = "rounding"

    def __init__(self, device_bytes=None):
        self.device_bytes = device_bytes
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.sizes = {}
        self.next_address = 0x1000

    def alloc(self, id, n_bytes, stream=0):
        size = -(-n_bytes // 512) * 512
        needed = max(self.reserved_bytes, self.allocated_bytes + size)
        if self.device_bytes is not None and needed > self.device_bytes:
            raise PredictedOutOfMemory(f"{size} bytes do not fit", requested_bytes=size)
        self.sizes[id] = size
        self.allocated_bytes += size
        self.reserved_bytes = needed
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, needed)
        self.next_address += size
        return self.next_address - size

    def free(self, id):
        self.allocated_bytes -= self.sizes.pop(id)

    def stats(self):
        return AllocatorStats()

    def record_stream(self, id, stream):
        pass

    def stream_done(self, stream):
        pass

    def empty_cache(self):
        self.reserved_bytes = self.allocated_bytes


class LateAllocator(RoundingAllocator):
    """Counts a free only when the stream is done, as MindSpore's pool does for storages with events."""

    def __init__(self, device_bytes=None):
        super().__init__(device_bytes)
        self.used, self.waiting = set(), []

    def record_stream(self, id, stream):
        self.used.add(id)

    def free(self, id):
        if id in self.used:
            self.waiting.append(id)
        else:
            super().free(id)

    def stream_done(self, stream):
        for id in self.waiting:
            super().free(id)
        self.waiting = []
