"""The state of a caching allocator: its pools and blocks, its counters, its rules.

CudaRules ──> CudaState <── read and changed by miss.py, expandable.py, release.py, streams.py
                  └──> CudaAllocator adds the moves a program makes: alloc, free, record_stream
"""

from __future__ import annotations

from collections.abc import Hashable

from windtunnel.errors import UsageError
from windtunnel.memory.allocators.blocks import (
    IN_USE,
    Block,
    BlockPool,
    FreeList,
    SegmentSpan,
)
from windtunnel.memory.allocators.cuda.addresses import AddressSpace, RecordedAddresses
from windtunnel.memory.allocators.cuda.rules import BLOCK_BYTES, NEVER, CudaRules, split_rule
from windtunnel.memory.allocators.cuda.streams import StreamUses
from windtunnel.memory.allocators.records import SegmentEvent

__all__ = ["FIRST_ADDRESS", "CudaState"]

FIRST_ADDRESS = 1 << 33
FIRST_EXPANDABLE_ADDRESS = 1 << 44


class CudaState:
    """One device's allocator at a moment."""

    def __init__(self, name: str, rules: CudaRules, device_bytes: int | None = None) -> None:
        self.name = name
        self.device_bytes = device_bytes
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.segment_events: list[SegmentEvent] = []
        self.addresses: AddressSpace | RecordedAddresses = AddressSpace(FIRST_ADDRESS)
        self.expandable_addresses = AddressSpace(FIRST_EXPANDABLE_ADDRESS)
        self.has_expandable = False  # has there ever been an expandable segment?
        self.small = BlockPool("small", is_small=True)
        self.large = BlockPool("large", is_small=False)
        self.private_pools: dict[Hashable, tuple[BlockPool, BlockPool]] = {}
        self.dropped_pools: list[Hashable] = []
        self.live: dict[Hashable, Block] = {}
        self.streams = StreamUses()
        self.n_serials = self.n_segments_made = self.n_allocs = 0
        self.requested_bytes = self.peak_requested_bytes = self.peak_num_live = 0
        self.peak_active_bytes = self.peak_num_active = 0
        self.split_bytes = self.peak_split_bytes = self.num_split = self.peak_num_split = 0
        self.num_segments = self.peak_num_segments = 0
        self.num_oversize_live = self.num_oversize_segments = 0
        self.num_alloc_retries = self.num_ooms = self.num_syncs = 0
        self.num_device_alloc = self.num_device_free = 0
        self.empty_ids: set[Hashable] = set()
        self.configure(rules)

    def configure(self, rules: CudaRules) -> None:
        """Change the rules from here on, as `torch.cuda.memory._set_allocator_settings` does."""
        self.rules = rules
        self.allowed_bytes: int | None = None
        if rules.memory_fraction < 1 and self.device_bytes is not None:
            self.allowed_bytes = int(rules.memory_fraction * self.device_bytes)
        self.collects = self.allowed_bytes is not None and rules.gc_threshold > 0
        self.round_mask = BLOCK_BYTES - 1 + rules.padding_bytes
        self.has_divisions = rules.has_divisions
        self.is_tie_serial = rules.tie == "block"
        # Nothing but size decides a fit: the search is one bisection, written out in `alloc`.
        is_special = rules.is_expandable or self.has_expandable or self.collects or rules.is_reclaim_lazy
        self.is_plain = not is_special and rules.max_split_bytes == NEVER
        self.polls = not rules.is_reclaim_lazy
        for pool in self.pools():
            for free_list in pool.lists.values():
                free_list.min_rest, free_list.max_split = split_rule(rules, pool)

    def add_pool(self, pool: Hashable, *, can_split: bool = True, can_expand: bool = True) -> None:
        """Open a private MemPool; `can_expand=False` for one with a custom allocator of its own."""
        if pool in self.private_pools:
            raise UsageError(f"there is already a memory pool {pool!r}")
        self.private_pools[pool] = (
            BlockPool(f"{pool}/small", True, can_split, can_expand),
            BlockPool(f"{pool}/large", False, can_split, can_expand),
        )

    def drop_pool(self, pool: Hashable) -> None:
        """The MemPool object is gone: a release may from now on return the segments it left."""
        if pool not in self.private_pools:
            raise UsageError(f"there is no memory pool {pool!r}", hint="add_pool opens one")
        self.dropped_pools.append(pool)

    def fits_device(self, n_bytes: int) -> bool:
        return self.device_bytes is None or self.reserved_bytes + n_bytes <= self.device_bytes

    def new_segment(self, address: int, n_bytes: int, page_bytes: int = 0) -> SegmentSpan:
        self.n_segments_made += 1
        return SegmentSpan(
            address, n_bytes, page_bytes, self.n_segments_made if self.rules.tie == "segment" else None
        )

    def reserve(self, action: str, address: int, n_bytes: int, stream: int) -> None:
        """Note that the device gave (or, for a negative size, took back) memory."""
        self.reserved_bytes += n_bytes
        if n_bytes > 0:
            self.num_device_alloc += 1
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        else:
            self.num_device_free += 1
        self.segment_events.append(SegmentEvent(action, self.n_allocs, address, abs(n_bytes), stream))

    def count_segment(self, change: int, n_bytes: int) -> None:
        self.num_segments += change
        self.peak_num_segments = max(self.peak_num_segments, self.num_segments)
        if n_bytes >= self.rules.max_split_bytes:
            self.num_oversize_segments += change

    def new_block(self, free_list: FreeList, segment: SegmentSpan, address: int, n_bytes: int) -> Block:
        block = Block()
        block.home, block.segment = free_list, segment
        block.address, block.n_bytes, block.requested = address, n_bytes, 0
        block.prev = block.next = None
        block.state = IN_USE
        self.n_serials = block.serial = self.n_serials + 1
        return block

    def new_list(self, pool: BlockPool, stream: int) -> FreeList:
        free_list = pool.lists[stream] = FreeList(pool, stream, *split_rule(self.rules, pool))
        return free_list

    def insert(self, block: Block) -> None:
        block.home.insert(
            block, block.serial if self.is_tie_serial else block.address + block.segment.tie_shift
        )

    def pools(self) -> list[BlockPool]:
        return [self.small, self.large, *(half for pair in self.private_pools.values() for half in pair)]

    def note_active_peak(self) -> None:
        # Only called while frees are deferred: at other times active is what is allocated.
        streams = self.streams
        self.peak_active_bytes = max(self.peak_active_bytes, self.allocated_bytes + streams.pending_bytes)
        self.peak_num_active = max(self.peak_num_active, len(self.live) + len(streams.pending))
