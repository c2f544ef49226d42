"""How a request is served when the simplest best fit in the free list is not enough.

find_fit:   best fit, growable tail last, oversize blocks only for oversize requests
serve_miss: GC ──> new segment ──> oversize release ──> full release ──> out of memory
"""

from __future__ import annotations

from bisect import bisect_left

from windtunnel.errors import PredictedOutOfMemory
from windtunnel.memory.allocators.blocks import SIZE_SHIFT, UNMAPPED, Block, FreeList
from windtunnel.memory.allocators.cuda.expandable import allocate_expandable
from windtunnel.memory.allocators.cuda.release import collect_garbage, release_cached_blocks, release_oversize
from windtunnel.memory.allocators.cuda.rules import segment_bytes
from windtunnel.memory.allocators.cuda.state import CudaState
from windtunnel.memory.allocators.records import SegmentEvent
from windtunnel.units import MIB, format_bytes

__all__ = ["find_fit", "serve_miss", "skip_to_alignment"]

LAZY_RECLAIM_EVENTS = 512  # torch_npu, when lazy, checks events before a search only above this many
ALIGNED_FROM_BYTES = 2 * MIB


def find_fit(state: CudaState, free_list: FreeList, size: int) -> Block | None:
    """Take the block that serves `size` out of the free list; None when none may."""
    rules = state.rules
    if rules.is_reclaim_lazy and state.streams.n_waiting > LAZY_RECLAIM_EVENTS:
        state.streams.finish_frees(state)
    if state.collects:
        free_list.pool.n_searches += 1
    blocks = free_list.blocks
    position = bisect_left(free_list.keys, size << SIZE_SHIFT)
    if position < len(blocks) and blocks[position].segment.is_expandable:
        position = _best_growth(blocks, position) if rules.is_expandable else _first_plain(blocks, position)
    if position >= len(blocks):
        return None
    found_bytes = blocks[position].n_bytes
    if size < rules.max_split_bytes <= found_bytes:
        return None
    if size >= rules.max_split_bytes and found_bytes >= size + rules.max_non_split_rounding_bytes:
        return None
    del free_list.keys[position]
    return blocks.pop(position)


def serve_miss(state: CudaState, free_list: FreeList, n_bytes: int, size: int) -> Block:
    """Get memory from the device, in the order of attempts the real allocator makes."""
    if state.rules.is_reclaim_lazy and state.streams.done:
        state.streams.finish_frees(state)
        block = find_fit(state, free_list, size)
        if block is not None:
            return block
    if state.collects:
        collect_garbage(state)
    asked_bytes = segment_bytes(state.rules, size)
    block = _allocate(state, free_list, asked_bytes, size)
    if block is None and release_oversize(state, free_list, size):
        block = _allocate(state, free_list, asked_bytes, size)
    if block is None:
        release_cached_blocks(state)
        state.num_alloc_retries += 1
        # The free list is not searched again: a block that became free just now is out of reach
        # unless it was released (pytorch issue 189504).
        block = _allocate(state, free_list, asked_bytes, size)
    if block is None:
        raise _out_of_memory(state, free_list, n_bytes, size)
    return block


def skip_to_alignment(state: CudaState, block: Block, size: int) -> Block:
    """Leave the unaligned head of a block free and return the rest, if `size` still fits there."""
    head_bytes = -block.address % state.rules.align_bytes
    if size < ALIGNED_FROM_BYTES or not head_bytes or head_bytes + size > block.n_bytes:
        return block
    aligned = state.new_block(
        block.home, block.segment, block.address + head_bytes, block.n_bytes - head_bytes
    )
    aligned.prev, aligned.next = block, block.next
    if aligned.next is not None:
        aligned.next.prev = aligned
    block.next, block.n_bytes = aligned, head_bytes
    state.insert(block)
    return aligned


def _best_growth(blocks: list[Block], position: int) -> int:
    # A tail that can still grow counts with all it can grow to, so it is used last.
    while blocks[position].segment.is_expandable and position + 1 < len(blocks):
        if _grown_bytes(blocks[position + 1]) >= _grown_bytes(blocks[position]):
            break
        position += 1
    return position


def _grown_bytes(block: Block) -> int:
    after = block.next
    return block.n_bytes + (after.n_bytes if after is not None and after.state == UNMAPPED else 0)


def _first_plain(blocks: list[Block], position: int) -> int:
    while position < len(blocks) and blocks[position].segment.is_expandable:
        position += 1
    return position


def _allocate(state: CudaState, free_list: FreeList, asked_bytes: int, size: int) -> Block | None:
    allowed_bytes = state.allowed_bytes
    if allowed_bytes is not None and state.reserved_bytes + asked_bytes > allowed_bytes:
        return None
    if state.rules.is_expandable and free_list.pool.can_expand:
        return allocate_expandable(state, free_list, size)
    if not state.fits_device(asked_bytes):
        return None
    segment = state.new_segment(state.addresses.take(asked_bytes), asked_bytes)
    state.count_segment(1, asked_bytes)
    state.reserve("segment_alloc", segment.address, asked_bytes, free_list.stream)
    return state.new_block(free_list, segment, segment.address, asked_bytes)


def _out_of_memory(state: CudaState, free_list: FreeList, n_bytes: int, size: int) -> PredictedOutOfMemory:
    state.num_ooms += 1
    event = SegmentEvent("oom", state.n_allocs, 0, size, free_list.stream)
    state.segment_events.append(event)
    limit = state.device_bytes if state.allowed_bytes is None else state.allowed_bytes
    assert limit is not None  # a device without limit is never full
    free_bytes = max(limit - state.reserved_bytes, 0)
    idle_bytes = state.reserved_bytes - state.allocated_bytes
    hint = "use a larger device or a smaller micro-batch"
    if idle_bytes >= n_bytes and not state.rules.is_expandable:
        hint = "the fragments alone could hold it: try expandable_segments:True"
    return PredictedOutOfMemory(
        f"{state.name}: {format_bytes(n_bytes)} requested, but only {format_bytes(free_bytes)} of "
        f"{format_bytes(limit)} is free ({format_bytes(state.reserved_bytes)} reserved, "
        f"{format_bytes(state.allocated_bytes)} allocated)",
        hint=hint,
        requested_bytes=n_bytes,
        free_bytes=free_bytes,
    )
