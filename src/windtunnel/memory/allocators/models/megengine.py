"""MegEngine's allocator: one best-fit list per stream over one per device over raw chunks.

    request ──> stream list ──miss──> device list ──miss──> raw chunk of that size
                                                   └─full─> gather all lists, return whole chunks, retry

While a device has a single stream, what is left of a raw chunk goes straight to that stream's list. With
`max_overhead` (mge.device.set_prealloc_config; 0 on CUDA devices) chunks grow with the total, by at most that much.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterator
from operator import index
from typing import NoReturn

from windtunnel.errors import PredictedOutOfMemory
from windtunnel.memory.allocators.cuda.addresses import AddressSpace
from windtunnel.memory.allocators.interface import Allocator, refuse_alloc, refuse_id
from windtunnel.memory.allocators.option_text import parse_conf
from windtunnel.memory.allocators.records import AllocatorStats, Segment, SegmentBlock
from windtunnel.units import MIB, format_bytes, parse_bytes

__all__ = ["MegEngineAllocator", "build_megengine"]

ALIGN_BYTES = 512
FIRST_ADDRESS = 1 << 33
LEAST_CHUNK_BYTES, GROWTH = 32 * MIB, 2


def build_megengine(torch: str, conf: str, device_bytes: int | None) -> MegEngineAllocator:
    options = parse_conf(conf, {"reserve_memory", "max_overhead"})  # the former is MGB_CUDA_RESERVE_MEMORY
    reserve, overhead = (parse_bytes(options.get(name, 0)) for name in ("reserve_memory", "max_overhead"))
    return MegEngineAllocator(device_bytes, reserve, overhead)


class FreeSpans:
    """Free address spans, found by size and merged by address, never across the head of a chunk."""

    def __init__(self) -> None:
        self.by_size: list[tuple[int, int]] = []
        self.addresses: list[int] = []
        self.sizes: dict[int, int] = {}

    def take(self, size: int) -> int | None:
        """Return the address of the smallest, lowest span that holds `size`; keep what is left of it."""
        index = bisect_left(self.by_size, (size, 0))
        if index == len(self.by_size):
            return None
        found_bytes, address = self.by_size.pop(index)
        del self.sizes[address]
        position = bisect_left(self.addresses, address)
        if found_bytes > size:  # the rest takes the place of the span
            rest = self.addresses[position] = address + size
            self.sizes[rest] = found_bytes - size
            insort(self.by_size, (found_bytes - size, rest))
        else:
            del self.addresses[position]
        return address

    def insert(self, address: int, n_bytes: int) -> None:
        insort(self.by_size, (n_bytes, address))
        insort(self.addresses, address)
        self.sizes[address] = n_bytes

    def remove(self, address: int) -> int:
        n_bytes = self.sizes.pop(address)
        del self.by_size[bisect_left(self.by_size, (n_bytes, address))]
        del self.addresses[bisect_left(self.addresses, address)]
        return n_bytes

    def merge(self, address: int, n_bytes: int, heads: dict[int, int]) -> None:
        index = bisect_left(self.addresses, address)
        after = self.addresses[index] if index < len(self.addresses) else None
        before = self.addresses[index - 1] if index else None
        joins_after = after == address + n_bytes and after not in heads
        if after is not None and joins_after:
            n_bytes += self._remove_size(after)
        if before is not None and address not in heads and before + self.sizes[before] == address:
            n_bytes += self._remove_size(before)
            address = before
            if joins_after:
                del self.addresses[index]
        elif joins_after:
            self.addresses[index] = address
        else:
            self.addresses.insert(index, address)
        self.sizes[address] = n_bytes
        insort(self.by_size, (n_bytes, address))

    def _remove_size(self, address: int) -> int:
        n_bytes = self.sizes.pop(address)
        del self.by_size[bisect_left(self.by_size, (n_bytes, address))]
        return n_bytes

    def beside(self, address: int, n_bytes: int) -> int:
        """Free bytes that touch the span from `address` on."""
        index = bisect_left(self.addresses, address)
        total = 0
        if index and self.addresses[index - 1] + self.sizes[self.addresses[index - 1]] == address:
            total += self.sizes[self.addresses[index - 1]]
        if index < len(self.addresses) and self.addresses[index] == address + n_bytes:
            total += self.sizes[self.addresses[index]]
        return total

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(address, self.sizes[address]) for address in self.addresses])


class MegEngineAllocator(Allocator):
    """The allocator of one device. Frees are in stream order, so nothing waits for another stream."""

    name = "megengine"
    reserved_bytes: int
    peak_reserved_bytes: int

    def __init__(
        self, device_bytes: int | None = None, reserve_bytes: int = 0, max_overhead_bytes: int = 0
    ) -> None:
        self.device_bytes = device_bytes
        self.max_overhead_bytes = max_overhead_bytes
        self.allocated_bytes = self.peak_allocated_bytes = self.reserved_bytes = self.peak_reserved_bytes = 0
        self._device = FreeSpans()
        self._streams: dict[int, FreeSpans] = {}
        self._chunks: dict[int, int] = {}  # address -> bytes, from the raw allocator
        self._addresses = AddressSpace(FIRST_ADDRESS)
        self._live: dict[Hashable, tuple[int, int, int, int]] = {}  # id -> address, bytes, requested, stream
        self._empty_ids: set[Hashable] = set()
        self._n_allocs = self._n_retries = self._n_ooms = self._peak_live = self._requested = (
            self._peak_requested
        ) = 0
        if reserve_bytes:
            self._device.insert(self._raw_alloc(reserve_bytes) or self._fail(reserve_bytes), reserve_bytes)

    def alloc(self, id: Hashable, n_bytes: int, stream: int = 0) -> int:
        if n_bytes <= 0 or id in self._live:
            return refuse_alloc(id, n_bytes, self._live, self._empty_ids)
        n_bytes = index(n_bytes)
        size = -(-n_bytes // ALIGN_BYTES) * ALIGN_BYTES
        spans = self._streams.get(stream)
        if spans is None:
            spans = self._streams[stream] = FreeSpans()
        address = spans.take(size) or self._device.take(size) or self._new_chunk(size)
        if address is None:
            self._fail(n_bytes)
        self._live[id] = (address, size, n_bytes, stream)
        self._n_allocs += 1
        self._requested += n_bytes
        self.allocated_bytes += size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        if self._requested > self._peak_requested:
            self._peak_requested = self._requested
        if len(self._live) > self._peak_live:
            self._peak_live = len(self._live)
        return address

    def free(self, id: Hashable) -> None:
        if id not in self._live:
            return refuse_id(id, self._empty_ids, "free")
        address, size, requested, stream = self._live.pop(id)
        self.allocated_bytes -= size
        self._requested -= requested
        self._streams[stream].merge(address, size, self._chunks)

    def free_beside(self, id: Hashable) -> int:
        """Free bytes that touch an allocation: what its release would join. Runtimes that evict ask for this."""
        address, size, _, stream = self._live[id]
        return self._streams[stream].beside(address, size)

    def record_stream(self, id: Hashable, stream: int) -> None:
        if id not in self._live:
            refuse_id(id, self._empty_ids, "record_stream", forget=False)

    def stream_done(self, stream: int) -> None:
        """Nothing waits for a stream here."""

    def empty_cache(self) -> None:
        """What `try_coalesce_free_memory` does: gather every stream's free memory, return whole chunks."""
        if len(self._streams) != 1:
            for spans in self._streams.values():
                for address, n_bytes in list(spans):
                    spans.remove(address)
                    self._device.merge(address, n_bytes, self._chunks)
        for spans in (self._device, *self._streams.values()):
            for address, n_bytes in list(spans):
                if self._chunks.get(address) == n_bytes:
                    spans.remove(address)
                    del self._chunks[address]
                    self._addresses.give_back(address, n_bytes)
                    self.reserved_bytes -= n_bytes

    def segments(self) -> tuple[Segment, ...]:
        blocks = [
            (SegmentBlock(address, size, requested, "active", id), stream)
            for id, (address, size, requested, stream) in self._live.items()
        ]
        for stream, spans in ((0, self._device), *self._streams.items()):
            blocks += [(SegmentBlock(address, n_bytes, 0, "inactive"), stream) for address, n_bytes in spans]
        heads = sorted(self._chunks)
        parts: dict[int, list[tuple[SegmentBlock, int]]] = {head: [] for head in heads}
        for block, stream in sorted(blocks, key=lambda part: part[0].address):
            parts[heads[bisect_right(heads, block.address) - 1]].append((block, stream))
        return tuple(
            Segment(
                head,
                self._chunks[head],
                parts[head][0][1],
                "device",
                False,
                tuple(block for block, _ in parts[head]),
            )
            for head in heads
        )

    def stats(self) -> AllocatorStats:
        num_live = len(self._live)
        return AllocatorStats(
            *(self.allocated_bytes, self.peak_allocated_bytes) * 2,
            requested_bytes=self._requested,
            peak_requested_bytes=self._peak_requested,
            reserved_bytes=self.reserved_bytes,
            peak_reserved_bytes=self.peak_reserved_bytes,
            num_allocated=num_live,
            peak_num_allocated=self._peak_live,
            num_active=num_live,
            peak_num_active=self._peak_live,
            num_segments=len(self._chunks),
            num_allocs=self._n_allocs,
            num_alloc_retries=self._n_retries,
            num_ooms=self._n_ooms,
        )

    def _new_chunk(self, size: int) -> int | None:
        wanted = min(
            max(size, LEAST_CHUNK_BYTES, GROWTH * self.reserved_bytes), size + self.max_overhead_bytes
        )
        address = self._raw_alloc(wanted)
        if address is None:
            wanted = size
            address = self._raw_alloc(wanted)
        if address is None:
            self._n_retries += 1
            self.empty_cache()
            address = self._raw_alloc(wanted)
        if address is None:
            return self._device.take(size)  # from what was gathered, but was not a whole chunk
        if wanted > size:
            spans = next(iter(self._streams.values())) if len(self._streams) == 1 else self._device
            spans.insert(address + size, wanted - size)
        return address

    def _raw_alloc(self, n_bytes: int) -> int | None:
        if self.device_bytes is not None and self.reserved_bytes + n_bytes > self.device_bytes:
            return None
        address = self._addresses.take(n_bytes)
        self._chunks[address] = n_bytes
        self.reserved_bytes += n_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return address

    def _fail(self, n_bytes: int) -> NoReturn:
        assert self.device_bytes is not None  # a device without limit is never full
        self._n_ooms += 1
        free_bytes = self.device_bytes - self.reserved_bytes
        raise PredictedOutOfMemory(
            f"megengine: {format_bytes(n_bytes)} requested, but only {format_bytes(free_bytes)} of "
            f"{format_bytes(self.device_bytes)} is free ({format_bytes(self.reserved_bytes)} reserved, "
            f"{format_bytes(self.allocated_bytes)} allocated)",
            hint="try MGB_CUDA_RESERVE_MEMORY (reserve_memory) against fragments, or a smaller micro-batch",
            requested_bytes=n_bytes,
            free_bytes=free_bytes,
        )
