"""The block map of a caching allocator, to and from frozen records.

    CudaAllocator ──list_segments──> Segments ──restore_segments──> CudaAllocator
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from windtunnel.memory.allocator_records import Segment, SegmentBlock
from windtunnel.memory.cuda_blocks import FREE, UNMAPPED, Block

if TYPE_CHECKING:
    from windtunnel.memory.cuda_allocator import CudaAllocator

__all__ = ["list_segments"]


def list_segments(allocator: CudaAllocator) -> tuple[Segment, ...]:
    """Read the block map. An expandable segment gives one record per mapped range."""
    owners: dict[Block, tuple[str, Hashable]] = {block: ("active", id) for id, block in allocator.live.items()}
    owners.update((block, ("pending_free", entry[1])) for block, entry in allocator.streams.pending.items())
    records = []
    for first in _first_blocks(allocator, owners):
        run: list[SegmentBlock] = []
        block: Block | None = first
        while block is not None:
            if block.state == UNMAPPED:
                records.extend(_segment_of(first, run))
                run = []
            else:
                state, id = owners.get(block, ("inactive", None))
                run.append(SegmentBlock(block.address, block.n_bytes, block.requested, state, id))
            block = block.next
        records.extend(_segment_of(first, run))
    return tuple(sorted(records, key=lambda segment: segment.address))


def _first_blocks(allocator: CudaAllocator, in_use: Iterable[Block]) -> list[Block]:
    free_lists = [free_list for pool in allocator.pools() for free_list in pool.lists.values()]
    blocks = [block for free_list in free_lists for block in (*free_list.blocks, *free_list.unmapped)]
    return [block for block in (*in_use, *blocks) if block.prev is None]


def _segment_of(first: Block, run: list[SegmentBlock]) -> Iterable[Segment]:
    if run:
        free_list = first.home
        n_bytes = run[-1].address + run[-1].n_bytes - run[0].address
        yield Segment(run[0].address, n_bytes, free_list.stream, free_list.pool.name, first.segment.is_expandable, tuple(run))
