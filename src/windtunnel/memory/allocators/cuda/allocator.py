"""PyTorch's CUDACachingAllocator, placement by placement.

    alloc ──> round ──> best fit in the free list ──miss──> GC, new segment, release, retry, OOM
          └─> split the block: front to the caller, rest back to the free list
    free  ──> (wait for streams) ──> merge_free.put_back: join free neighbours, free list

One class serves every configuration; what differs is in CudaRules. `alloc`, `free` and `put_back`
are the hot path (over half a million calls a second), so they are written out flat: attribute loads
and calls are what they spend their time on. Everything rarer is a function in a file of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from operator import index

from windtunnel.memory.allocators.blocks import FREE, IN_USE, SIZE_SHIFT, Block, BlockPool
from windtunnel.memory.allocators.cuda.merge_free import put_back
from windtunnel.memory.allocators.cuda.miss import find_fit, serve_miss, skip_to_alignment
from windtunnel.memory.allocators.cuda.release import release_cached_blocks
from windtunnel.memory.allocators.cuda.rules import BLOCK_BYTES, SMALL_BYTES, round_request
from windtunnel.memory.allocators.cuda.state import CudaState
from windtunnel.memory.allocators.interface import Allocator, refuse_alloc, refuse_id
from windtunnel.memory.allocators.records import AllocatorStats, Segment
from windtunnel.memory.allocators.segments import list_segments

__all__ = ["CudaAllocator"]


class CudaAllocator(CudaState, Allocator):
    """The caching allocator of one device."""

    def alloc(self, id: Hashable, n_bytes: int, stream: int = 0, *, pool: Hashable = None) -> int:
        live = self.live
        if n_bytes <= 0 or id in live:
            return refuse_alloc(id, n_bytes, live, self.empty_ids)
        if type(n_bytes) is not int:
            n_bytes = index(n_bytes)  # numpy's integers would overflow silently in the keys
        streams = self.streams
        if streams.done and self.polls:
            streams.finish_frees(self)
        if self.has_divisions:
            size = round_request(self.rules, n_bytes)
        else:
            size = (n_bytes + self.round_mask) & -BLOCK_BYTES
        half = self.small if size <= SMALL_BYTES else self.large
        if pool is not None:
            half = self._private_half(pool, size)
        free_list = half.lists.get(stream) or self.new_list(half, stream)

        keys = free_list.keys
        blocks = free_list.blocks
        if self.is_plain:
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
            return refuse_id(id, self.empty_ids, "free")
        self.allocated_bytes -= block.n_bytes
        if block.n_bytes >= self.rules.max_split_bytes:
            self.num_oversize_live -= 1
        uses = self.streams.uses
        if uses and id in uses:
            self.streams.defer(id, block)
        else:
            put_back(self, block)

    def record_stream(self, id: Hashable, stream: int) -> None:
        block = self.live.get(id)
        if block is None:
            refuse_id(id, self.empty_ids, "record_stream", forget=False)
        elif stream != block.home.stream:
            self.streams.uses.setdefault(id, {})[stream] = None

    def stream_done(self, stream: int) -> None:
        self.streams.mark_done(stream)

    def empty_cache(self) -> None:
        release_cached_blocks(self)

    def segments(self) -> tuple[Segment, ...]:
        owners = {block: ("active", id) for id, block in self.live.items()}
        owners.update((block, ("pending_free", id)) for block, id in self.streams.pending.items())
        free_lists = [free_list for pool in self.pools() for free_list in pool.lists.values()]
        return list_segments(
            owners, [block for part in free_lists for block in (*part.blocks, *part.unmapped)]
        )

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

    def _private_half(self, pool: Hashable, size: int) -> BlockPool:
        if pool not in self.private_pools:
            self.add_pool(pool)
        return self.private_pools[pool][0 if size <= SMALL_BYTES else 1]
