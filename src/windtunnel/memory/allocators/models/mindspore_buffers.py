"""The buffers of one MindSpore pool: best fit by (size, address), split, merge.

malloc ──> idle ──> idle + unmapped neighbour ──> unmapped ──> None
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from windtunnel.memory.allocators.blocks import FREE, IN_USE, SIZE_SHIFT, UNMAPPED, Block, BlockPool, FreeList

if TYPE_CHECKING:
    from windtunnel.memory.allocators.models.mindspore import MindSporeAllocator
    from windtunnel.memory.allocators.models.mindspore_device import CarvedDevice, PagedDevice

__all__ = ["BLOCK_ALIGN", "BufferPool", "MemBlock"]

BLOCK_ALIGN = 512


class MemBlock:
    """What was taken from the device at once."""

    __slots__ = ("address", "high", "is_expandable", "low", "n_bytes", "pool")

    def __init__(self, pool: BufferPool, address: int, n_bytes: int, is_expandable: bool) -> None:
        self.pool = pool
        self.address = address
        self.n_bytes = n_bytes
        self.is_expandable = is_expandable
        self.low, self.high = address + n_bytes, address  # border of what was ever handed out

    @property
    def touched_bytes(self) -> int:
        return max(self.high - self.low, 0)


class BufferPool:
    """The blocks of one stream, for weights ("persistent") or for the rest ("common")."""

    def __init__(self, name: str, stream: int) -> None:
        self.blocks: list[MemBlock] = []
        self.stream = stream
        kind = BlockPool(name, is_small=False)
        self.idle = FreeList(kind, stream, BLOCK_ALIGN, 0)
        self.unmapped = FreeList(kind, stream, BLOCK_ALIGN, 0)

    def malloc(self, allocator: MindSporeAllocator, size: int) -> Block | None:
        if not self.blocks and not self.expand(allocator, size):
            return None
        buffer = _lower_bound(self.idle, size)
        if buffer is not None:
            self.idle.remove(buffer)
            return self._hand_out(allocator, buffer, size)
        if not allocator.device.is_paged:
            return None
        return self._grow_idle(allocator.device, size) or self._map_unmapped(
            allocator, allocator.device, size
        )

    def expand(self, allocator: MindSporeAllocator, size: int, *, exact: bool = False) -> bool:
        """Take a new block that holds `size`; its one buffer is idle, or unmapped with virtual memory."""
        n_bytes = allocator.new_block_bytes(size)
        if n_bytes is None:
            return False
        address, n_bytes = allocator.device.take(size if exact else n_bytes)
        block = MemBlock(self, address, n_bytes, allocator.device.is_paged)
        self.blocks.append(block)
        self._list(
            _new_buffer(self, block, address, n_bytes), UNMAPPED if allocator.device.is_paged else FREE
        )
        return True

    def put_back(self, buffer: Block, state: int) -> None:
        """Join a buffer with the neighbours that are in `state` too, and list it."""
        free_list = self.idle if state == FREE else self.unmapped
        prev, after = buffer.prev, buffer.next
        if prev is not None and prev.state == state:
            free_list.remove(prev)
            buffer.address, buffer.prev = prev.address, prev.prev
            buffer.n_bytes += prev.n_bytes
            if buffer.prev is not None:
                buffer.prev.next = buffer
        if after is not None and after.state == state:
            free_list.remove(after)
            buffer.n_bytes += after.n_bytes
            _link(buffer, after.next)
        self._list(buffer, state)

    def unmap_idle(self, device: PagedDevice) -> None:
        """Give up the pages under everything idle, to use them at other addresses."""
        idle = list(self.idle.blocks)
        self.idle.keys.clear()
        self.idle.blocks.clear()
        for buffer in idle:
            buffer.state = IN_USE  # in no list until put back
        for buffer in idle:
            self.put_back(buffer, UNMAPPED)
        for buffer in self.unmapped.blocks:
            device.unmap(buffer.address, buffer.n_bytes)

    def release_blocks(self, allocator: MindSporeAllocator, device: CarvedDevice) -> None:
        """Return the blocks that are idle from end to end."""
        for buffer in list(self.idle.blocks):
            if buffer.prev is None and buffer.next is None:
                self.idle.remove(buffer)
                self.blocks.remove(buffer.segment)
                device.give_back(buffer.n_bytes)
                allocator.touched_bytes -= buffer.segment.touched_bytes

    def _grow_idle(self, device: PagedDevice, size: int) -> Block | None:
        """Serve from an idle buffer and the unmapped one behind it, largest idle first."""
        for buffer in reversed(self.idle.blocks):
            after = buffer.next
            if after is None or after.state != UNMAPPED or buffer.n_bytes + after.n_bytes < size:
                continue
            missing = size - buffer.n_bytes
            if not device.map(after.address, missing):
                return None
            self.idle.remove(buffer)
            self.unmapped.remove(after)
            buffer.n_bytes, buffer.state = size, IN_USE
            if after.n_bytes == missing:
                _link(buffer, after.next)
            else:
                after.address += missing
                after.n_bytes -= missing
                self._list(after, UNMAPPED)
            return buffer
        return None

    def _map_unmapped(self, allocator: MindSporeAllocator, device: PagedDevice, size: int) -> Block | None:
        buffer = _lower_bound(self.unmapped, size)
        if buffer is None:
            return None
        is_split = buffer.n_bytes - size >= BLOCK_ALIGN
        if not device.map(buffer.address, size if is_split else buffer.n_bytes):
            return None
        self.unmapped.remove(buffer)
        return self._hand_out(allocator, buffer, size)

    def _hand_out(self, allocator: MindSporeAllocator, buffer: Block, size: int) -> Block:
        if buffer.n_bytes - size >= BLOCK_ALIGN:
            rest = _new_buffer(self, buffer.segment, buffer.address + size, buffer.n_bytes - size)
            _link(rest, buffer.next)
            _link(buffer, rest)
            buffer.n_bytes = size
            self._list(rest, buffer.state)
        buffer.state = IN_USE
        block = buffer.segment
        end = buffer.address + buffer.n_bytes
        if buffer.address < block.low or end > block.high:
            before = block.touched_bytes
            block.low, block.high = min(block.low, buffer.address), max(block.high, end)
            allocator.touched_bytes += block.touched_bytes - before
        return buffer

    def _list(self, buffer: Block, state: int) -> None:
        (self.idle if state == FREE else self.unmapped).insert(buffer, buffer.address)
        buffer.state = state


def _lower_bound(free_list: FreeList, size: int) -> Block | None:
    position = bisect_left(free_list.keys, size << SIZE_SHIFT)
    return free_list.blocks[position] if position < len(free_list.blocks) else None


def _new_buffer(pool: BufferPool, block: MemBlock, address: int, n_bytes: int) -> Block:
    buffer = Block()
    buffer.home, buffer.segment = pool.idle, block
    buffer.address, buffer.n_bytes, buffer.requested = address, n_bytes, 0
    buffer.prev = buffer.next = None
    return buffer


def _link(buffer: Block, after: Block | None) -> None:
    buffer.next = after
    if after is not None:
        after.prev = buffer
