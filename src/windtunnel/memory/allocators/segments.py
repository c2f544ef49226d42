"""The block map of an allocator, as frozen records.

blocks in use, free blocks ──> follow the links ──> Segments, in address order
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping

from windtunnel.memory.allocators.blocks import UNMAPPED, Block
from windtunnel.memory.allocators.records import Segment, SegmentBlock

__all__ = ["list_segments"]


def list_segments(owners: Mapping[Block, tuple[str, Hashable]], free: Iterable[Block]) -> tuple[Segment, ...]:
    """Read the block map from the blocks in use (state and id of each) and the free and unmapped ones.

    An expandable segment gives one record per mapped range.
    """
    records: list[Segment] = []
    for first in (block for block in (*owners, *free) if block.prev is None):
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


def _segment_of(first: Block, run: list[SegmentBlock]) -> Iterator[Segment]:
    if run:
        free_list = first.home
        n_bytes = run[-1].address + run[-1].n_bytes - run[0].address
        is_expandable = first.segment.is_expandable
        yield Segment(
            run[0].address, n_bytes, free_list.stream, free_list.pool.name, is_expandable, tuple(run)
        )
