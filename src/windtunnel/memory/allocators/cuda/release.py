"""How the caching allocator gives segments back to the device.

empty_cache, OOM retry ──> wait for streams ──> every whole free segment, large pool first
max_split_size set     ──> just enough oversize segments
memory fraction + GC   ──> the whole free segments that went unused longest
"""

from __future__ import annotations

from bisect import bisect_left

from windtunnel.memory.allocators.blocks import SIZE_SHIFT, Block, BlockPool, FreeList
from windtunnel.memory.allocators.cuda.expandable import unmap_block
from windtunnel.memory.allocators.cuda.rules import NEVER
from windtunnel.memory.allocators.cuda.state import CudaState
from windtunnel.pool_streams import is_pool_stream

__all__ = ["collect_garbage", "release_cached_blocks", "release_oversize"]


def release_cached_blocks(state: CudaState) -> None:
    """Wait for all streams, then give back everything that is wholly free."""
    state.num_syncs += 1
    state.streams.finish_all(state)
    _release_pool(state, state.large)
    _release_pool(state, state.small)
    for pool in state.dropped_pools:
        for half in state.private_pools[pool]:
            _release_pool(state, half)


def release_oversize(state: CudaState, free_list: FreeList, size: int) -> bool:
    """Give back oversize segments of this stream until `size` bytes are won; False if they do not add up."""
    max_split = state.rules.max_split_bytes
    if max_split == NEVER:
        return False
    wanted = max(size, max_split)
    position = bisect_left(free_list.keys, wanted << SIZE_SHIFT)
    if position < len(free_list.blocks) and not free_list.blocks[position].segment.is_expandable:
        _release_segment(state, free_list.blocks[position])
        return True
    won = 0
    for block in reversed(free_list.blocks[:position]):
        if won >= wanted or block.n_bytes < max_split:
            break
        if not block.segment.is_expandable:
            won += block.n_bytes
            _release_segment(state, block)
    return won >= wanted


def collect_garbage(state: CudaState) -> None:
    """Free the large segments older than average, repeatedly, until use is back under the threshold.

    Age counts searches of the pool since the block became free. A pass is never cut short: collecting
    a little too much is meant to keep the next collection away.
    """
    assert state.allowed_bytes is not None  # `state.collects` says so
    limit = int(state.rules.gc_threshold * state.allowed_bytes)
    target = state.reserved_bytes - limit
    if target <= 0:
        return
    pool = state.large
    whole = [block for block in pool.in_order() if _is_whole(block) and not _is_kept(block)]
    ages = {block: pool.n_searches - getattr(block, "born", 0) for block in whole}
    total_age, n_left, won, is_freeing = sum(ages.values()), len(ages), 0, True
    while won < target and is_freeing and n_left:
        threshold, is_freeing = total_age / n_left, False
        old = [block for block in ages if not block.segment.is_expandable and ages[block] >= threshold]
        for block in old:
            is_freeing = True
            won += block.n_bytes
            total_age -= ages.pop(block)
            n_left -= 1
            _release_segment(state, block)


def _release_pool(state: CudaState, pool: BlockPool) -> None:
    to_unmap = []
    for block in pool.in_order():
        if _is_kept(block):
            continue
        if block.segment.is_expandable:
            to_unmap.append(block)
        elif _is_whole(block):
            _release_segment(state, block)
    for block in to_unmap:
        unmap_block(state, block)


def _release_segment(state: CudaState, block: Block) -> None:
    block.home.remove(block)
    state.reserve("segment_free", block.address, -block.n_bytes, block.home.stream)
    state.count_segment(-1, block.n_bytes)
    state.addresses.give_back(block.address, block.n_bytes)


def _is_whole(block: Block) -> bool:
    return block.prev is None and block.next is None


def _is_kept(block: Block) -> bool:
    """Whether CUDA graphs keep it: their kernels write there at the next replay."""
    return is_pool_stream(block.home.stream)
