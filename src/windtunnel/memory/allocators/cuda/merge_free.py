"""Put a freed block back: joined with its free neighbours, into the free list of its pool and stream.

CudaAllocator.free, or the stream a free waited for ──> put_back ──> one larger free block
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from windtunnel.memory.allocators.blocks import FREE, SIZE_SHIFT, Block

if TYPE_CHECKING:
    from windtunnel.memory.allocators.cuda.state import CudaState

__all__ = ["put_back"]


def put_back(state: CudaState, block: Block) -> None:
    """Put a block back in its free list, joined with the free neighbours it has."""
    state.requested_bytes -= block.requested
    free_list = block.home
    keys = free_list.keys
    blocks = free_list.blocks
    size = merged_bytes = block.n_bytes
    split_change = 1
    prev = block.prev
    if prev is not None and prev.state == FREE:
        position = bisect_left(keys, prev.key)
        del keys[position], blocks[position]
        block.address = prev.address
        merged_bytes += prev.n_bytes
        split_change = 0
        prev = block.prev = prev.prev
        if prev is not None:
            prev.next = block
    after = block.next
    if after is not None and after.state == FREE:
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
    tie = block.serial if state.is_tie_serial else block.address + segment.tie_shift
    key = block.key = (merged_bytes << SIZE_SHIFT) + tie
    position = bisect_left(keys, key)
    keys.insert(position, key)
    blocks.insert(position, block)
    if state.collects:
        block.born = free_list.pool.n_searches
    if segment.is_expandable:
        return
    if prev is None and after is None:
        # The whole segment is free again: none of it counts as split.
        state.split_bytes -= merged_bytes - size
        state.num_split += split_change - 1
    else:
        state.split_bytes += size
        state.num_split += split_change
        if state.split_bytes > state.peak_split_bytes:
            state.peak_split_bytes = state.split_bytes
        if state.num_split > state.peak_num_split:
            state.peak_num_split = state.num_split
