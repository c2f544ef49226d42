"""No caching at all: live bytes are exactly the requested bytes.

    request ──> live bytes

For runs whose device is the CPU itself, and as the floor every other model is compared with.
"""

from __future__ import annotations

from collections.abc import Hashable

from windtunnel.errors import PredictedOutOfMemory, UsageError
from windtunnel.memory.allocators.interface import Allocator, refuse_alloc, refuse_id
from windtunnel.memory.allocators.records import AllocatorStats, Segment, SegmentBlock
from windtunnel.units import format_bytes

__all__ = ["CpuAllocator", "build_cpu"]

ALIGN_BYTES = 64  # of addresses only
FIRST_ADDRESS = 1 << 33


def build_cpu(torch: str, conf: str, device_bytes: int | None) -> CpuAllocator:
    if conf.strip():
        raise UsageError(f"the allocator 'cpu' has no options, got {conf!r}", hint="drop them")
    return CpuAllocator(device_bytes)


class CpuAllocator(Allocator):
    """Every allocation is its own segment; streams do not exist."""

    def __init__(self, device_bytes: int | None = None) -> None:
        self.name = "cpu"
        self.device_bytes = device_bytes
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self._live: dict[Hashable, tuple[int, int, int]] = {}  # id -> address, bytes, stream
        self._empty_ids: set[Hashable] = set()
        self._top = FIRST_ADDRESS
        self._n_allocs = self._n_ooms = self._peak_live = 0

    @property
    def reserved_bytes(self) -> int:
        return self.allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        return self.peak_allocated_bytes

    def alloc(self, id: Hashable, n_bytes: int, stream: int = 0) -> int:
        if n_bytes <= 0 or id in self._live:
            return refuse_alloc(id, n_bytes, self._live, self._empty_ids)
        if self.device_bytes is not None and self.allocated_bytes + n_bytes > self.device_bytes:
            self._n_ooms += 1
            free_bytes = self.device_bytes - self.allocated_bytes
            raise PredictedOutOfMemory(
                f"cpu: {format_bytes(n_bytes)} requested, but only {format_bytes(free_bytes)} of "
                f"{format_bytes(self.device_bytes)} is free ({format_bytes(self.allocated_bytes)} allocated)",
                hint="use a smaller micro-batch",
                requested_bytes=n_bytes,
                free_bytes=free_bytes,
            )
        address = self._top
        self._top += -(-n_bytes // ALIGN_BYTES) * ALIGN_BYTES
        self._live[id] = (address, n_bytes, stream)
        self._n_allocs += 1
        self.allocated_bytes += n_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        self._peak_live = max(self._peak_live, len(self._live))
        return address

    def free(self, id: Hashable) -> None:
        if id not in self._live:
            return refuse_id(id, self._empty_ids, "free")
        self.allocated_bytes -= self._live.pop(id)[1]

    def record_stream(self, id: Hashable, stream: int) -> None:
        if id not in self._live:
            refuse_id(id, self._empty_ids, "record_stream", forget=False)

    def stream_done(self, stream: int) -> None:
        """Nothing waits for a stream here."""

    def empty_cache(self) -> None:
        """There is no cache."""

    def segments(self) -> tuple[Segment, ...]:
        return tuple(
            Segment(
                address,
                n_bytes,
                stream,
                "cpu",
                False,
                (SegmentBlock(address, n_bytes, n_bytes, "active", id),),
            )
            for id, (address, n_bytes, stream) in self._live.items()
        )

    def stats(self) -> AllocatorStats:
        live, peak, num_live = self.allocated_bytes, self.peak_allocated_bytes, len(self._live)
        return AllocatorStats(
            *(live, peak) * 4,
            num_allocated=num_live,
            peak_num_allocated=self._peak_live,
            num_active=num_live,
            peak_num_active=self._peak_live,
            num_segments=num_live,
            peak_num_segments=self._peak_live,
            num_allocs=self._n_allocs,
            num_ooms=self._n_ooms,
        )
