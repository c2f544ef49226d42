"""Blocks of device memory, and the sorted lists that hold the free ones.

    BlockPool (small or large) ──> one FreeList per stream ──> Blocks, linked to their neighbours

A free list keeps two parallel lists: `keys`, one integer per free block that sorts by size and then
by the tie rule, and `blocks`. One integer compares several times faster than a tuple.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

__all__ = ["FREE", "IN_USE", "SIZE_SHIFT", "UNMAPPED", "Block", "BlockPool", "FreeList", "SegmentSpan"]

FREE, IN_USE, UNMAPPED = 0, 1, 2
SIZE_SHIFT = 96  # a key is (size << SIZE_SHIFT) + tie, and every tie is smaller
AGE_SHIFT = 56  # the tie of torch >= 2.13 is (age of the segment << AGE_SHIFT) + offset in the segment


class SegmentSpan:
    """The addresses of one segment. An expandable one is mostly unmapped."""

    __slots__ = ("address", "is_expandable", "n_bytes", "page_bytes", "tie_shift")

    def __init__(self, address: int, n_bytes: int, page_bytes: int, age: int | None) -> None:
        self.address = address
        self.n_bytes = n_bytes
        self.page_bytes = page_bytes  # 0 for a plain segment
        self.is_expandable = page_bytes > 0
        # Added to a block's address it gives the block's tie: age None means the address itself.
        self.tie_shift = 0 if age is None else (age << AGE_SHIFT) - address


class Block:
    """A contiguous piece of a segment. The allocator fills it in: no __init__, for speed."""

    __slots__ = (
        "address",
        "born",
        "home",
        "key",
        "n_bytes",
        "next",
        "prev",
        "requested",
        "segment",
        "serial",
        "state",
    )

    home: FreeList  # the free list it belongs to, for ever
    segment: Any  # a SegmentSpan; in MindSpore's pool a MemBlock
    address: int
    n_bytes: int
    requested: int  # by the last owner; a block that grows by merging keeps its own
    prev: Block | None  # neighbours in the same segment, by address
    next: Block | None
    state: int
    key: int  # its key while it is in the free list
    serial: int  # age of this record: torch 2.12 breaks ties by it
    born: int  # searches of the pool when it became free, for garbage collection


class FreeList:
    """The free blocks of one pool and stream, smallest first."""

    __slots__ = ("blocks", "keys", "max_split", "min_rest", "pool", "stream", "unmapped")

    def __init__(self, pool: BlockPool, stream: int, min_rest: int, max_split: int) -> None:
        self.pool = pool
        self.stream = stream
        self.min_rest = min_rest  # a block is split when at least this much would be left
        self.max_split = max_split  # and when the request is smaller than this
        self.keys: list[int] = []
        self.blocks: list[Block] = []
        self.unmapped: list[Block] = []  # by address

    def insert(self, block: Block, tie: int) -> None:
        block.state = FREE
        block.born = self.pool.n_searches
        key = block.key = (block.n_bytes << SIZE_SHIFT) + tie
        position = bisect_left(self.keys, key)
        self.keys.insert(position, key)
        self.blocks.insert(position, block)

    def remove(self, block: Block) -> None:
        position = bisect_left(self.keys, block.key)
        del self.keys[position], self.blocks[position]

    def insert_unmapped(self, block: Block) -> None:
        block.state = UNMAPPED
        position = bisect_left(self.unmapped, block.address, key=_address_of)
        self.unmapped.insert(position, block)

    def remove_unmapped(self, block: Block) -> None:
        del self.unmapped[bisect_left(self.unmapped, block.address, key=_address_of)]


class BlockPool:
    """All free lists of one pool. Blocks never leave their pool, nor their stream."""

    __slots__ = ("can_expand", "can_split", "is_small", "lists", "n_searches", "name")

    def __init__(self, name: str, is_small: bool, can_split: bool = True, can_expand: bool = True) -> None:
        self.name = name
        self.is_small = is_small
        self.can_split = can_split
        self.can_expand = can_expand
        self.lists: dict[int, FreeList] = {}
        self.n_searches = 0

    def in_order(self) -> Iterator[Block]:
        """Yield every free block in the order the real allocator walks them: stream, size, tie."""
        for stream in sorted(self.lists):
            yield from tuple(self.lists[stream].blocks)


def _address_of(block: Block) -> int:
    return block.address
