"""PyTorch's CUDACachingAllocator, placement by placement.

    alloc ──> round ──> best fit in the free list ──miss──> GC, new segment, release, retry, OOM
          └─> split the block: front to the caller, rest back to the free list
    free  ──> (wait for streams) ──> merge with free neighbours ──> free list

One class serves every configuration; what differs is in CudaRules. `alloc`, `free` and `put_back`
are the hot path (half a million calls a second), so they are written out flat: attribute loads and
calls are what they spend their time on. Everything rarer is a function in a `cuda_*` file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable

from windtunnel.errors import UsageError
from windtunnel.memory.allocator import Allocator, refuse_alloc, refuse_id
from windtunnel.memory.allocator_records import AllocatorStats, Segment, SegmentEvent
from windtunnel.memory.cuda_addresses import AddressSpace
from windtunnel.memory.cuda_blocks import FREE, IN_USE, SIZE_SHIFT, Block, BlockPool, FreeList, SegmentSpan
from windtunnel.memory.cuda_miss import find_fit, serve_miss, skip_to_alignment
from windtunnel.memory.cuda_release import release_cached_blocks
from windtunnel.memory.cuda_rules import BLOCK_BYTES, NEVER, SMALL_BYTES, CudaRules, round_request
from windtunnel.memory.cuda_segments import list_segments
from windtunnel.memory.cuda_streams import StreamUses

__all__ = ["CudaAllocator"]

FIRST_ADDRESS = 1 << 33
FIRST_EXPANDABLE_ADDRESS = 1 << 44


class CudaAllocator(Allocator):
    """The caching allocator of one device, for one CudaRules."""

    def __init__(self, name: str, rules: CudaRules, device_bytes: int | None = None) -> None:
        self.name = name
        self.device_bytes = device_bytes
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.segment_events: list[SegmentEvent] = []
        self.addresses = AddressSpace(FIRST_ADDRESS)
        self.expandable_addresses = AddressSpace(FIRST_EXPANDABLE_ADDRESS)
        self.has_expandable = False  # has there ever been an expandable segment?
        self.small = BlockPool("small", is_small=True)
        self.large = BlockPool("large", is_small=False)
        self.private_pools: dict[Hashable, tuple[BlockPool, BlockPool]] = {}
        self.live: dict[Hashable, Block] = {}
        self.streams = StreamUses()
        self.n_serials = self.n_segments_made = self.n_allocs = 0
        self.requested_bytes = self.peak_requested_bytes = self.peak_num_live = 0
        self.peak_active_bytes = self.peak_num_active = 0
        self.split_bytes = self.peak_split_bytes = self.num_split = self.peak_num_split = 0
        self.num_segments = self.peak_num_segments = self.num_oversize_live = self.num_oversize_segments = 0
        self.num_alloc_retries = self.num_ooms = self.num_syncs = self.num_device_alloc = self.num_device_free = 0
        self._empty_ids: set[Hashable] = set()
        self.configure(rules)

    def configure(self, rules: CudaRules) -> None:
        """Change the rules from here on, as `torch.cuda.memory._set_allocator_settings` does."""
        self.rules = rules
        limited = rules.memory_fraction < 1 and self.device_bytes is not None
        self.allowed_bytes = int(rules.memory_fraction * self.device_bytes) if limited else None
        self.collects = limited and rules.gc_threshold > 0
        self._round_mask = BLOCK_BYTES - 1 + rules.padding_bytes
        self._has_divisions = rules.has_divisions
        self.is_tie_serial = rules.tie == "block"
        # Nothing but size decides a fit: the search is one bisection, written out in `alloc`.
        is_special = rules.is_expandable or self.has_expandable or self.collects or rules.is_reclaim_lazy
        self._is_plain = not is_special and rules.max_split_bytes == NEVER
        self._polls = not rules.is_reclaim_lazy
        for pool in self.pools():
            for free_list in pool.lists.values():
                free_list.min_rest, free_list.max_split = _split_rule(rules, pool)

    def add_pool(self, pool: Hashable, *, can_split: bool = True, can_expand: bool = True) -> None:
        """Open a private MemPool; `can_expand=False` for one with a custom allocator of its own."""
        if pool in self.private_pools:
            raise UsageError(f"there is already a memory pool {pool!r}")
        self.private_pools[pool] = (
            BlockPool(f"{pool}/small", True, can_split, can_expand),
            BlockPool(f"{pool}/large", False, can_split, can_expand),
        )

    def alloc(self, id: Hashable, n_bytes: int, stream: int = 0, *, pool: Hashable = None) -> int:
        live = self.live
        if n_bytes <= 0 or id in live:
            return refuse_alloc(id, n_bytes, live, self._empty_ids)
        streams = self.streams
        if streams.done and self._polls:
            streams.finish_frees(self)
        size = round_request(self.rules, n_bytes) if self._has_divisions else (n_bytes + self._round_mask) & -BLOCK_BYTES
        half = self.small if size <= SMALL_BYTES else self.large
        if pool is not None:
            half = self._private_half(pool, size)
        free_list = half.lists.get(stream) or self.new_list(half, stream)

        keys = free_list.keys
        blocks = free_list.blocks
        if self._is_plain:
            position = bisect_left(keys, size << SIZE_SHIFT)
            if position < len(keys):
                block = blocks.pop(position)
                del keys[position]
            else:
                block = serve_miss(self, free_list, n_bytes, size)
                position = len(keys)
        else:
            block = find_fit(self, free_list, size) or serve_miss(self, free_list, n_bytes, size)
            if self.rules.align_bytes:
                block = skip_to_alignment(self, block, size)
            position = len(keys)

        segment = block.segment
        was_split = block.prev is not None or block.next is not None
        rest_bytes = block.n_bytes - size
        if rest_bytes >= free_list.min_rest and size < free_list.max_split:
            # The old record stays with the rest, as in the original: it decides ties in 2.12.
            rest = block
            block = Block()
            block.home = free_list
            block.segment = segment
            address = block.address = rest.address
            block.n_bytes = size
            prev = block.prev = rest.prev
            block.next = rest
            rest.prev = block
            if prev is not None:
                prev.next = block
            rest.n_bytes = rest_bytes
            rest.address = address + size
            if self.is_tie_serial:
                self.n_serials = block.serial = self.n_serials + 1
                tie = rest.serial
            else:
                tie = rest.address + segment.tie_shift
            rest.state = FREE
            key = rest.key = (rest_bytes << SIZE_SHIFT) + tie
            position = bisect_left(keys, key, 0, position)
            keys.insert(position, key)
            blocks.insert(position, rest)
            if self.collects:
                rest.born = half.n_searches
            if segment.is_expandable:
                pass  # its whole pages can always be given back, so nothing counts as stuck
            elif was_split:
                self.split_bytes -= size
            else:
                self.split_bytes += rest_bytes
                self.num_split += 1
                if self.split_bytes > self.peak_split_bytes:
                    self.peak_split_bytes = self.split_bytes
                if self.num_split > self.peak_num_split:
                    self.peak_num_split = self.num_split
        else:
            size = block.n_bytes
            if was_split and not segment.is_expandable:
                self.split_bytes -= size
                self.num_split -= 1
            address = block.address

        block.state = IN_USE
        block.requested = n_bytes
        live[id] = block
        self.n_allocs += 1
        allocated = self.allocated_bytes = self.allocated_bytes + size
        if allocated > self.peak_allocated_bytes:
            self.peak_allocated_bytes = allocated
        requested = self.requested_bytes = self.requested_bytes + n_bytes
        if requested > self.peak_requested_bytes:
            self.peak_requested_bytes = requested
        if len(live) > self.peak_num_live:
            self.peak_num_live = len(live)
        if streams.pending:
            self.note_active_peak()
        if size >= self.rules.max_split_bytes:
            self.num_oversize_live += 1
        return address

    def free(self, id: Hashable) -> None:
        block = self.live.pop(id, None)
        if block is None:
            return refuse_id(id, self._empty_ids, "free")
        self.allocated_bytes -= block.n_bytes
        if block.n_bytes >= self.rules.max_split_bytes:
            self.num_oversize_live -= 1
        uses = self.streams.uses
        if uses and id in uses:
            self.streams.defer(id, block)
        else:
            self.put_back(block)

    def put_back(self, block: Block) -> None:
        """Put a block back in its free list, joined with the free neighbours it has."""
        self.requested_bytes -= block.requested
        free_list = block.home
        keys = free_list.keys
        blocks = free_list.blocks
        size = merged_bytes = block.n_bytes
        split_change = 1
        prev = block.prev
        if prev is not None:
            if prev.state == FREE:
                position = bisect_left(keys, prev.key)
                del keys[position], blocks[position]
                block.address = prev.address
                merged_bytes += prev.n_bytes
                split_change = 0
                prev = block.prev = prev.prev
                if prev is not None:
                    prev.next = block
        after = block.next
        if after is not None:
            if after.state == FREE:
                position = bisect_left(keys, after.key)
                del keys[position], blocks[position]
                merged_bytes += after.n_bytes
                split_change -= 1
                after = block.next = after.next
                if after is not None:
                    after.prev = block
        block.n_bytes = merged_bytes
        block.state = FREE
        segment = block.segment
        tie = block.serial if self.is_tie_serial else block.address + segment.tie_shift
        key = block.key = (merged_bytes << SIZE_SHIFT) + tie
        position = bisect_left(keys, key)
        keys.insert(position, key)
        blocks.insert(position, block)
        if self.collects:
            block.born = free_list.pool.n_searches
        if segment.is_expandable:
            return
        if prev is None and after is None:
            # The whole segment is free again: none of it counts as split.
            self.split_bytes -= merged_bytes - size
            self.num_split += split_change - 1
        else:
            self.split_bytes += size
            self.num_split += split_change
            if self.split_bytes > self.peak_split_bytes:
                self.peak_split_bytes = self.split_bytes
            if self.num_split > self.peak_num_split:
                self.peak_num_split = self.num_split

    def record_stream(self, id: Hashable, stream: int) -> None:
        block = self.live.get(id)
        if block is None:
            refuse_id(id, self._empty_ids, "record_stream", forget=False)
        elif stream != block.home.stream:
            self.streams.uses.setdefault(id, {})[stream] = None

    def stream_done(self, stream: int) -> None:
        self.streams.mark_done(stream)

    def empty_cache(self) -> None:
        release_cached_blocks(self)

    def segments(self) -> tuple[Segment, ...]:
        owners = {block: ("active", id) for id, block in self.live.items()}
        owners.update((block, ("pending_free", entry[1])) for block, entry in self.streams.pending.items())
        free_lists = [free_list for pool in self.pools() for free_list in pool.lists.values()]
        return list_segments(owners, [block for part in free_lists for block in (*part.blocks, *part.unmapped)])

    def stats(self) -> AllocatorStats:
        num_live = len(self.live)
        return AllocatorStats(
            allocated_bytes=self.allocated_bytes,
            peak_allocated_bytes=self.peak_allocated_bytes,
            active_bytes=self.allocated_bytes + self.streams.pending_bytes,
            peak_active_bytes=max(self.peak_active_bytes, self.peak_allocated_bytes),
            requested_bytes=self.requested_bytes,
            peak_requested_bytes=self.peak_requested_bytes,
            reserved_bytes=self.reserved_bytes,
            peak_reserved_bytes=self.peak_reserved_bytes,
            inactive_split_bytes=self.split_bytes,
            peak_inactive_split_bytes=self.peak_split_bytes,
            num_allocated=num_live,
            peak_num_allocated=self.peak_num_live,
            num_active=num_live + len(self.streams.pending),
            peak_num_active=max(self.peak_num_active, self.peak_num_live),
            num_segments=self.num_segments,
            peak_num_segments=self.peak_num_segments,
            num_inactive_split=self.num_split,
            peak_num_inactive_split=self.peak_num_split,
            num_allocs=self.n_allocs,
            num_alloc_retries=self.num_alloc_retries,
            num_ooms=self.num_ooms,
            num_device_alloc=self.num_device_alloc,
            num_device_free=self.num_device_free,
            num_sync_all_streams=self.num_syncs,
            num_oversize_allocated=self.num_oversize_live,
            num_oversize_segments=self.num_oversize_segments,
        )

    # -- what the functions of the other cuda_* files ask of an allocator

    def fits_device(self, n_bytes: int) -> bool:
        return self.device_bytes is None or self.reserved_bytes + n_bytes <= self.device_bytes

    def new_segment(self, address: int, n_bytes: int, page_bytes: int = 0) -> SegmentSpan:
        self.n_segments_made += 1
        return SegmentSpan(address, n_bytes, page_bytes, self.n_segments_made if self.rules.tie == "segment" else None)

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
        free_list = pool.lists[stream] = FreeList(pool, stream, *_split_rule(self.rules, pool))
        return free_list

    def insert(self, block: Block) -> None:
        block.home.insert(block, block.serial if self.is_tie_serial else block.address + block.segment.tie_shift)

    def pools(self) -> list[BlockPool]:
        return [self.small, self.large, *(half for pair in self.private_pools.values() for half in pair)]

    def _private_half(self, pool: Hashable, size: int) -> BlockPool:
        if pool not in self.private_pools:
            self.add_pool(pool)
        return self.private_pools[pool][0 if size <= SMALL_BYTES else 1]

    def note_active_peak(self) -> None:
        # Only called while frees are deferred: at other times active is what is allocated.
        streams = self.streams
        self.peak_active_bytes = max(self.peak_active_bytes, self.allocated_bytes + streams.pending_bytes)
        self.peak_num_active = max(self.peak_num_active, len(self.live) + len(streams.pending))


def _split_rule(rules: CudaRules, pool: BlockPool) -> tuple[int, int]:
    """Return the least rest worth splitting off, and the size from which nothing is split."""
    if not pool.can_split:
        return NEVER, NEVER
    if pool.is_small or rules.is_expandable:
        return BLOCK_BYTES, NEVER
    return SMALL_BYTES + 1, rules.max_split_bytes
