"""Expandable segments: a large range of addresses whose pages are mapped as they are needed.

miss ──> lowest free-or-unmapped run that fits (or a new segment) ──> map pages ──> block
release ──> unmap the pages that lie wholly inside free blocks
"""

from __future__ import annotations

from windtunnel.memory.allocators.blocks import FREE, IN_USE, UNMAPPED, Block, FreeList, SegmentSpan
from windtunnel.memory.allocators.cuda.rules import SMALL_SEGMENT_BYTES
from windtunnel.memory.allocators.cuda.state import CudaState
from windtunnel.units import GIB

__all__ = ["allocate_expandable", "new_span", "unmap_block"]

UNLIMITED_DEVICE_BYTES = 1 << 44  # only sets how many addresses a segment takes


def allocate_expandable(state: CudaState, free_list: FreeList, size: int) -> Block | None:
    """Map what is missing for a block of `size` bytes; None when the device is full.

    Pages mapped before the device ran out stay mapped, as free blocks.
    """
    block = _find_room(free_list, size) or _new_segment(state, free_list)
    if block.state == UNMAPPED and not _map(state, block, min(block.n_bytes, size)):
        return None
    while block.n_bytes < size:
        unmapped = block.next
        assert unmapped is not None  # `_find_room` counted it
        if not _map(state, unmapped, min(size - block.n_bytes, unmapped.n_bytes)):
            return None
        block = unmapped  # mapping made it swallow the free block before it
    free_list.remove(block)
    return block


def new_span(state: CudaState, free_list: FreeList, address: int | None = None) -> SegmentSpan:
    """Reserve the addresses of an expandable segment: nine eighths of the device, none of it mapped."""
    page = SMALL_SEGMENT_BYTES if free_list.pool.is_small else state.rules.large_page_bytes
    device_bytes = UNLIMITED_DEVICE_BYTES if state.device_bytes is None else state.device_bytes
    n_bytes = -(-(device_bytes + device_bytes // 8) // page) * page
    if address is None:
        address = state.expandable_addresses.take(n_bytes, align=GIB)
    state.has_expandable = True
    return state.new_segment(address, n_bytes, page)


def unmap_block(state: CudaState, block: Block) -> None:
    """Give back the whole pages inside a free block; what is left of it stays free."""
    free_list, base, page = block.home, block.segment.address, block.segment.page_bytes
    first = base + -(-(block.address - base) // page) * page
    end = block.address + block.n_bytes
    last = base + (end - base) // page * page
    if first >= last:
        return
    free_list.remove(block)
    if first > block.address:
        _splice(state, block, block.address, first - block.address, is_before=True)
    if end > last:
        _splice(state, block, last, end - last, is_before=False)
    block.address, block.n_bytes, block.state = first, last - first, UNMAPPED
    _absorb(block, block.prev)
    _absorb(block, block.next)
    free_list.insert_unmapped(block)
    state.reserve("segment_unmap", first, first - last, free_list.stream)
    if block.prev is None and block.next is None:
        free_list.remove_unmapped(block)  # the last page is gone, and the segment with it


def _find_room(free_list: FreeList, size: int) -> Block | None:
    for unmapped in free_list.unmapped:
        before = unmapped.prev
        start = before if before is not None and before.state == FREE else unmapped
        if _holds(start, size):
            return start
    return None


def _holds(block: Block | None, size: int) -> bool:
    while size > 0 and block is not None and block.state != IN_USE:
        size -= block.n_bytes
        block = block.next
    return size <= 0


def _new_segment(state: CudaState, free_list: FreeList) -> Block:
    segment = new_span(state, free_list)
    block = state.new_block(free_list, segment, segment.address, segment.n_bytes)
    free_list.insert_unmapped(block)
    return block


def _map(state: CudaState, block: Block, n_bytes: int) -> bool:
    page = block.segment.page_bytes
    mapped_bytes = -(-n_bytes // page) * page
    if not state.fits_device(mapped_bytes):
        return False
    free_list = block.home
    free_list.remove_unmapped(block)
    address = block.address
    if mapped_bytes < block.n_bytes:
        rest = _splice(
            state, block, address + mapped_bytes, block.n_bytes - mapped_bytes, is_before=False, is_free=False
        )
        free_list.insert_unmapped(rest)
        block.n_bytes = mapped_bytes
    block.state = FREE
    _absorb(block, block.prev)
    _absorb(block, block.next)
    state.insert(block)
    state.reserve("segment_map", address, mapped_bytes, free_list.stream)
    return True


def _absorb(block: Block, neighbour: Block | None) -> None:
    """Merge a neighbour of the same state into `block`, which is in no list now."""
    if neighbour is None or neighbour.state != block.state:
        return
    if neighbour.state == FREE:
        block.home.remove(neighbour)
    else:
        block.home.remove_unmapped(neighbour)
    block.n_bytes += neighbour.n_bytes
    if neighbour is block.prev:
        block.address, block.prev = neighbour.address, neighbour.prev
        if block.prev is not None:
            block.prev.next = block
    else:
        block.next = neighbour.next
        if block.next is not None:
            block.next.prev = block


def _splice(
    state, block: Block, address: int, n_bytes: int, *, is_before: bool, is_free: bool = True
) -> Block:
    """Link a new block in front of or behind `block`."""
    piece = state.new_block(block.home, block.segment, address, n_bytes)
    piece.prev, piece.next = (block.prev, block) if is_before else (block, block.next)
    if piece.prev is not None:
        piece.prev.next = piece
    if piece.next is not None:
        piece.next.prev = piece
    if is_free:
        state.insert(piece)
    return piece
