"""MindSpore's device memory pool (AbstractDynamicMemPool of MindSpore 2.5 and newer).

    request ──> + 512 rule ──> best fit of (stream, persistent?) ──miss──> other pool, new block, wait, OOM
    free    ──> (wait for events) ──> merge with idle neighbours of the block

`allocated` is what MindSpore prints as used ("without fragments"): a buffer that waits for an event
still counts. `reserved` is what it prints as actual ("with fragments"): for every block, the distance
between the lowest and the highest address ever handed out, or with `enable_vmm` the physical pages.
"""

from __future__ import annotations

from collections.abc import Hashable
from operator import index

from windtunnel.errors import PredictedOutOfMemory
from windtunnel.memory.allocators.blocks import FREE, Block
from windtunnel.memory.allocators.interface import Allocator, refuse_alloc, refuse_id
from windtunnel.memory.allocators.models.mindspore_buffers import BLOCK_ALIGN, BufferPool
from windtunnel.memory.allocators.models.mindspore_device import CarvedDevice, PagedDevice
from windtunnel.memory.allocators.option_text import parse_conf, read_flag
from windtunnel.memory.allocators.records import AllocatorStats, Segment
from windtunnel.memory.allocators.segments import list_segments
from windtunnel.units import GIB, MIB, format_bytes, parse_bytes

__all__ = ["MindSporeAllocator", "build_mindspore"]

# Of MS_ALLOC_CONF, and the settings that reach the pool by other ways: `block_size` is
# mindspore.runtime.set_memory(increase_size=…), `init_size` its init_size, `task_sink` the jit level O2,
# and `request_padding:False` is for sizes that already went through the + 512 rule.
KEYS = ("block_size", "enable_vmm", "init_size", "request_padding", "task_sink", "vmm_align_size")
NEUTRAL_KEYS = (
    "acl_allocator",
    "memory_tracker",
    "memory_tracker_path",
    "simple_tracker",
    "somas_whole_block",
)


def build_mindspore(torch: str, conf: str, device_bytes: int | None) -> MindSporeAllocator:
    options = parse_conf(conf, {*KEYS, *NEUTRAL_KEYS})
    is_vmm = read_flag(options, "enable_vmm")
    device: CarvedDevice | PagedDevice
    if is_vmm:
        device = PagedDevice(device_bytes, parse_bytes(options.get("vmm_align_size", 2 * MIB)))
    else:
        device = CarvedDevice(device_bytes)
    allocator = MindSporeAllocator(
        device,
        block_bytes=parse_bytes(options.get("block_size", GIB)),
        doubles=not read_flag(options, "task_sink"),
        pads=options.get("request_padding") is None or read_flag(options, "request_padding"),
    )
    allocator.reserve_first(parse_bytes(options.get("init_size", 0)))
    return allocator


class MindSporeAllocator(Allocator):
    """The pool of one device. Weights and constants pass `persistent=True`."""

    name = "mindspore"
    peak_reserved_bytes: int

    def __init__(
        self,
        device: CarvedDevice | PagedDevice,
        *,
        block_bytes: int = GIB,
        doubles: bool = True,
        pads: bool = True,
    ) -> None:
        self.device = device
        self.is_paged = device.is_paged
        self.device_bytes = device.device_bytes
        self.block_bytes = block_bytes
        self.doubles = doubles  # a large request doubles the block until it fits; else whole units
        self.pads = pads
        self.allocated_bytes = self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self.touched_bytes = 0  # over all blocks: highest minus lowest address handed out
        self.pools: dict[tuple[int, bool], BufferPool] = {}
        self.live: dict[Hashable, Block] = {}
        self.pending: dict[Block, tuple[Hashable, set[int]]] = {}  # freed; waits for these streams
        self._uses: dict[Hashable, set[int]] = {}
        self._empty_ids: set[Hashable] = set()
        self._n_allocs = self._n_retries = self._n_ooms = self._peak_live = self._requested = (
            self._peak_requested
        ) = 0

    @property
    def reserved_bytes(self) -> int:
        return self.device.physical_bytes if self.device.is_paged else self.touched_bytes

    def alloc(self, id: Hashable, n_bytes: int, stream: int = 0, *, persistent: bool = False) -> int:
        if n_bytes <= 0 or id in self.live:
            return refuse_alloc(id, n_bytes, self.live, self._empty_ids)
        n_bytes = index(n_bytes)
        size = (n_bytes + (BLOCK_ALIGN + 31 if self.pads else BLOCK_ALIGN - 1)) // BLOCK_ALIGN * BLOCK_ALIGN
        pool = self.pools.get((stream, persistent)) or self._pool(stream, persistent)
        block = pool.malloc(self, size) or self._serve_miss(size, stream, persistent)
        if block is None:
            raise self._out_of_memory(n_bytes)
        block.requested = n_bytes
        self.live[id] = block
        self._count(block.n_bytes, n_bytes)
        return block.address

    def _count(self, n_bytes: int, requested: int) -> None:
        # Comparisons, not max(): half of a replay's time was spent in calls to it.
        self._n_allocs += 1
        self.allocated_bytes += n_bytes
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        reserved = self.device.physical_bytes if self.is_paged else self.touched_bytes
        if reserved > self.peak_reserved_bytes:
            self.peak_reserved_bytes = reserved
        self._requested += requested
        if self._requested > self._peak_requested:
            self._peak_requested = self._requested
        n_live = len(self.live) + len(self.pending)
        if n_live > self._peak_live:
            self._peak_live = n_live

    def free(self, id: Hashable) -> None:
        block = self.live.pop(id, None)
        if block is None:
            return refuse_id(id, self._empty_ids, "free")
        streams = self._uses.pop(id, None) if self._uses else None
        if streams:
            self.pending[block] = (id, streams)
        else:
            self._put_back(block)

    def record_stream(self, id: Hashable, stream: int) -> None:
        block = self.live.get(id)
        if block is None:
            refuse_id(id, self._empty_ids, "record_stream", forget=False)
        elif stream != block.home.stream:
            self._uses.setdefault(id, set()).add(stream)

    def stream_done(self, stream: int) -> None:
        """Drop the events of `stream`; buffers that waited for nothing else become idle at once."""
        for streams in self._uses.values():
            streams.discard(stream)
        for block, (_, streams) in list(self.pending.items()):
            streams.discard(stream)
            if not streams:
                del self.pending[block]
                self._put_back(block)

    def empty_cache(self) -> None:
        """Return whole idle blocks; with virtual memory, unmap what is idle and drop its pages."""
        if self.device.is_paged:
            self._unmap_idle(self.device)
            self.device.drop_cached_pages()
            return
        for pool in self.pools.values():
            pool.release_blocks(self, self.device)

    def segments(self) -> tuple[Segment, ...]:
        owners = {block: ("active", id) for id, block in self.live.items()}
        owners.update((block, ("pending_free", id)) for block, (id, _) in self.pending.items())
        pools = self.pools.values()
        return list_segments(
            owners, [b for pool in pools for b in (*pool.idle.blocks, *pool.unmapped.blocks)]
        )

    def stats(self) -> AllocatorStats:
        blocks = [block for pool in self.pools.values() for block in pool.blocks]
        num_live = len(self.live) + len(self.pending)
        return AllocatorStats(
            allocated_bytes=self.allocated_bytes,
            peak_allocated_bytes=self.peak_allocated_bytes,
            active_bytes=self.allocated_bytes,
            peak_active_bytes=self.peak_allocated_bytes,
            requested_bytes=self._requested,
            peak_requested_bytes=self._peak_requested,
            reserved_bytes=self.reserved_bytes,
            peak_reserved_bytes=self.peak_reserved_bytes,
            num_allocated=num_live,
            peak_num_allocated=self._peak_live,
            num_active=num_live,
            peak_num_active=self._peak_live,
            num_segments=len(blocks),
            num_allocs=self._n_allocs,
            num_alloc_retries=self._n_retries,
            num_ooms=self._n_ooms,
        )

    def reserve_first(self, n_bytes: int) -> None:
        """Pre-allocate: one half for the persistent pool, one half for the common one."""
        if n_bytes and not self.device.is_paged:
            for persistent in (True, False):
                self._pool(0, persistent).expand(self, n_bytes // 2 // BLOCK_ALIGN * BLOCK_ALIGN, exact=True)

    def new_block_bytes(self, size: int) -> int | None:
        """How large a new block for `size` is; None when the device cannot hold the request."""
        free_bytes = self.device.free_bytes
        if free_bytes is not None and free_bytes < size:
            return None
        n_bytes = self.block_bytes
        if self.doubles:
            while n_bytes < size:
                n_bytes *= 2
        else:
            n_bytes = max(-(-size // n_bytes), 1) * n_bytes
        return n_bytes if free_bytes is None else min(n_bytes, free_bytes)

    def _pool(self, stream: int, persistent: bool) -> BufferPool:
        key = (stream, persistent)
        pool = self.pools.get(key)
        if pool is None:
            pool = self.pools[key] = BufferPool("persistent" if persistent else "common", stream)
        return pool

    def _serve_miss(self, size: int, stream: int, persistent: bool) -> Block | None:
        pool, block = self._pool(stream, persistent), None
        if persistent and not self.device.is_paged:
            pool = self._pool(stream, False)
            block = pool.malloc(self, size)
        if block is None and self.device.is_paged:
            self._unmap_idle(self.device)
            block = pool.malloc(self, size)
        if block is None and pool.expand(self, size):
            block = pool.malloc(self, size)
        if block is None and not persistent:
            block = self._pool(stream, True).malloc(self, size)
        if block is None:
            self._n_retries += 1
            for waiting in list(self.pending):
                del self.pending[waiting]
                self._put_back(waiting)
            block = pool.malloc(self, size)
        return block

    def _put_back(self, block: Block) -> None:
        self.allocated_bytes -= block.n_bytes
        self._requested -= block.requested
        block.segment.pool.put_back(block, FREE)

    def _unmap_idle(self, device: PagedDevice) -> None:
        for pool in self.pools.values():
            pool.unmap_idle(device)

    def _out_of_memory(self, n_bytes: int) -> PredictedOutOfMemory:
        assert self.device_bytes is not None  # a device without limit is never full
        self._n_ooms += 1
        free_bytes = self.device.free_bytes or 0
        idle_bytes = self.reserved_bytes - self.allocated_bytes
        fragments_hold_it = idle_bytes >= n_bytes and not self.device.is_paged
        return PredictedOutOfMemory(
            f"mindspore: {format_bytes(n_bytes)} requested, but only {format_bytes(free_bytes)} of "
            f"{format_bytes(self.device_bytes)} is free ({format_bytes(self.reserved_bytes)} with fragments, "
            f"{format_bytes(self.allocated_bytes)} used)",
            hint="the fragments alone could hold it: try enable_vmm:True"
            if fragments_hold_it
            else "use a larger device or a smaller micro-batch",
            requested_bytes=n_bytes,
            free_bytes=free_bytes,
        )
