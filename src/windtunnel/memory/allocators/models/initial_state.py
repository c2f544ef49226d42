"""Start a caching allocator in the middle of a run, from a block map.

    Segments of a snapshot (or of another allocator) ──restore_segments──> CudaAllocator

What a segment's blocks leave open is free. Ages are not in a snapshot: segments count as made in
the order of their addresses.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from windtunnel.errors import UsageError
from windtunnel.memory.allocators.blocks import Block, BlockPool, FreeList, SegmentSpan
from windtunnel.memory.allocators.cuda.allocator import CudaAllocator
from windtunnel.memory.allocators.cuda.expandable import new_span
from windtunnel.memory.allocators.records import Segment, SegmentBlock

__all__ = ["restore_segments", "restored_stream"]


def restore_segments(allocator: CudaAllocator, segments: Iterable[Segment]) -> None:
    """Fill an unused allocator. A block without an id gets its address as id."""
    if allocator.n_allocs or allocator.reserved_bytes:
        raise UsageError("an initial state can only be given to an allocator that has not been used")
    last_block: dict[FreeList, Block] = {}  # the end of the expandable segment of each free list
    for segment in sorted(segments, key=lambda segment: segment.address):
        free_list = _free_list(allocator, segment)
        if segment.is_expandable:
            last_block[free_list] = _restore_range(allocator, free_list, segment, last_block.get(free_list))
        else:
            span = allocator.new_segment(segment.address, segment.n_bytes)
            _restore_blocks(allocator, free_list, segment, span, None)
            allocator.count_segment(1, segment.n_bytes)
            allocator.addresses.skip_past(segment.address + segment.n_bytes)
        allocator.reserved_bytes += segment.n_bytes
    for free_list, block in last_block.items():
        end = block.segment.address + block.segment.n_bytes
        _restore_unmapped(allocator, free_list, block, end)
        allocator.expandable_addresses.skip_past(end)
    _restart_peaks(allocator)


def restored_stream(id: Hashable) -> Hashable:
    """The stream whose end completes the deferred free of a block that was restored as pending."""
    return ("restored", id)


def _free_list(allocator: CudaAllocator, segment: Segment) -> FreeList:
    private, _, half = segment.pool.rpartition("/")
    if half not in ("small", "large"):
        raise UsageError(f"a segment cannot be in pool {segment.pool!r}", hint='"small" or "large"')
    pool: BlockPool = allocator.small if half == "small" else allocator.large
    if private:
        if private not in allocator.private_pools:
            allocator.add_pool(private)
        pool = allocator.private_pools[private][half == "large"]
    return pool.lists.get(segment.stream) or allocator.new_list(pool, segment.stream)


def _restore_range(
    allocator: CudaAllocator, free_list: FreeList, segment: Segment, last: Block | None
) -> Block:
    """Add a mapped range to the expandable segment that `last` ends, or to a new one."""
    if last is None:
        span = new_span(allocator, free_list, segment.address)
    else:
        span = last.segment
        last = _restore_unmapped(allocator, free_list, last, segment.address)
    return _restore_blocks(allocator, free_list, segment, span, last)


def _restore_unmapped(allocator: CudaAllocator, free_list: FreeList, last: Block, end: int) -> Block:
    start = last.address + last.n_bytes
    if start >= end:
        return last
    block = _append(allocator, free_list, last.segment, last, SegmentBlock(start, end - start, 0, "inactive"))
    free_list.insert_unmapped(block)
    return block


def _restore_blocks(
    allocator: CudaAllocator, free_list: FreeList, segment: Segment, span: SegmentSpan, last: Block | None
) -> Block:
    for record in _fill_gaps(segment):
        last = _append(allocator, free_list, span, last, record)
        if record.state == "inactive":
            allocator.insert(last)
            if record.n_bytes < segment.n_bytes and not segment.is_expandable:
                allocator.split_bytes += record.n_bytes
                allocator.num_split += 1
            continue
        id = record.address if record.id is None else record.id
        allocator.requested_bytes += record.requested_bytes
        if record.state == "pending_free":
            allocator.streams.uses[id] = {restored_stream(id): None}
            allocator.streams.defer(id, last)
            continue
        allocator.live[id] = last
        allocator.allocated_bytes += record.n_bytes
        if record.n_bytes >= allocator.rules.max_split_bytes:
            allocator.num_oversize_live += 1
    if last is None:
        raise UsageError(f"the segment at {segment.address:#x} has no bytes")
    return last


def _append(
    allocator: CudaAllocator, free_list: FreeList, span: SegmentSpan, last: Block | None, record: SegmentBlock
) -> Block:
    block = allocator.new_block(free_list, span, record.address, record.n_bytes)
    block.requested = record.requested_bytes
    block.prev = last
    if last is not None:
        last.next = block
    return block


def _fill_gaps(segment: Segment) -> Iterable[SegmentBlock]:
    """Yield the blocks in use and, between them, one free block per gap."""
    requested = {block.address: block.requested_bytes for block in segment.blocks}
    end = segment.address
    for block in sorted(segment.blocks, key=lambda block: block.address):
        if block.state != "inactive":
            if block.address > end:
                yield SegmentBlock(end, block.address - end, requested.get(end, 0), "inactive")
            yield block
            end = block.address + block.n_bytes
    if end < segment.address + segment.n_bytes:
        yield SegmentBlock(end, segment.address + segment.n_bytes - end, requested.get(end, 0), "inactive")


def _restart_peaks(allocator: CudaAllocator) -> None:
    allocator.peak_allocated_bytes = allocator.allocated_bytes
    allocator.peak_requested_bytes = allocator.requested_bytes
    allocator.peak_reserved_bytes = allocator.reserved_bytes
    allocator.peak_num_live = len(allocator.live)
    allocator.peak_split_bytes, allocator.peak_num_split = allocator.split_bytes, allocator.num_split
    allocator.note_active_peak()
