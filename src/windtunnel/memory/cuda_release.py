"""How the caching allocator gives segments back to the device.

    empty_cache, OOM retry ──> wait for streams ──> every whole free segment, large pool first
    max_split_size set     ──> just enough oversize segments
    memory fraction + GC   ──> the whole free segments that went unused longest
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from windtunnel.memory.cuda_blocks import SIZE_SHIFT, Block, BlockPool, FreeList
from windtunnel.memory.cuda_expandable import unmap_block
from windtunnel.memory.cuda_rules import NEVER

if TYPE_CHECKING:
    from windtunnel.memory.cuda_allocator import CudaAllocator

__all__ = ["collect_garbage", "release_cached_blocks", "release_oversize"]


def release_cached_blocks(allocator: CudaAllocator) -> None:
    """Wait for all streams, then give back everything that is wholly free."""
    allocator.num_syncs += 1
    allocator.streams.finish_all(allocator)
    _release_pool(allocator, allocator.large)
    _release_pool(allocator, allocator.small)


def release_oversize(allocator: CudaAllocator, free_list: FreeList, size: int) -> bool:
    """Give back oversize segments of this stream until `size` bytes are won; False if they do not add up."""
    max_split = allocator.rules.max_split_bytes
    if max_split == NEVER:
        return False
    wanted = max(size, max_split)
    position = bisect_left(free_list.keys, wanted << SIZE_SHIFT)
    if position < len(free_list.blocks) and not free_list.blocks[position].segment.is_expandable:
        _release_segment(allocator, free_list.blocks[position])
        return True
    won = 0
    for block in reversed(free_list.blocks[:position]):
        if won >= wanted or block.n_bytes < max_split:
            break
        if not block.segment.is_expandable:
            won += block.n_bytes
            _release_segment(allocator, block)
    return won >= wanted


def collect_garbage(allocator: CudaAllocator) -> None:
    """Free the large segments older than average, repeatedly, until use is back under the threshold.

    Age counts searches of the pool since the block became free. A pass is never cut short: collecting
    a little too much is meant to keep the next collection away.
    """
    limit = int(allocator.rules.gc_threshold * allocator.allowed_bytes)
    target = allocator.reserved_bytes - limit
    if target <= 0:
        return
    pool = allocator.large
    ages = {block: pool.n_searches - getattr(block, "born", 0) for block in pool.in_order() if _is_whole(block)}
    total_age, n_left, won, is_freeing = sum(ages.values()), len(ages), 0, True
    while won < target and is_freeing and n_left:
        threshold, is_freeing = total_age / n_left, False
        for block in [block for block in ages if not block.segment.is_expandable and ages[block] >= threshold]:
            is_freeing = True
            won += block.n_bytes
            total_age -= ages.pop(block)
            n_left -= 1
            _release_segment(allocator, block)


def _release_pool(allocator: CudaAllocator, pool: BlockPool) -> None:
    to_unmap = []
    for block in pool.in_order():
        if block.segment.is_expandable:
            to_unmap.append(block)
        elif _is_whole(block):
            _release_segment(allocator, block)
    for block in to_unmap:
        unmap_block(allocator, block)


def _release_segment(allocator: CudaAllocator, block: Block) -> None:
    block.home.remove(block)
    allocator.reserve("segment_free", block.address, -block.n_bytes, block.home.stream)
    allocator.count_segment(-1, block.n_bytes)
    allocator.addresses.give_back(block.address, block.n_bytes)


def _is_whole(block: Block) -> bool:
    return block.prev is None and block.next is None
