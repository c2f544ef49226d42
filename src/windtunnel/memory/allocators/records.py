"""What an allocator reports: its segments, its counters, its calls to the device.

Allocator ──> segments() : Segment > SegmentBlock
          ──> stats()    : AllocatorStats
          ──> segment_events : SegmentEvent, in the order they happened
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

__all__ = ["AllocatorStats", "Segment", "SegmentBlock", "SegmentEvent"]


@dataclass(frozen=True, slots=True)
class SegmentBlock:
    """A piece of a segment; blocks of a segment lie back to back."""

    address: int
    n_bytes: int
    requested_bytes: int  # by the last owner, before rounding
    state: str  # "active", "pending_free" (other streams still read it) or "inactive"
    id: Hashable = None  # the owner's id while active or pending


@dataclass(frozen=True, slots=True)
class Segment:
    """One contiguous range of device memory. Expandable segments: one record per mapped range."""

    address: int
    n_bytes: int
    stream: int
    pool: str  # "small", "large", "common", "persistent"; "NAME/small" in a private pool
    is_expandable: bool
    blocks: tuple[SegmentBlock, ...]

    @property
    def used_bytes(self) -> int:
        return sum(block.n_bytes for block in self.blocks if block.state != "inactive")


@dataclass(frozen=True, slots=True)
class SegmentEvent:
    """A call of the allocator to the device."""

    action: str  # "segment_alloc", "segment_free", "segment_map", "segment_unmap" or "oom"
    after_allocs: int  # successful allocations so far
    address: int  # 0 for "oom"
    n_bytes: int
    stream: int


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    """Counters, named as torch.cuda.memory_stats names them where it has them.

    A model that has no such notion leaves the counter at zero.
    """

    allocated_bytes: int = 0
    peak_allocated_bytes: int = 0
    active_bytes: int = 0  # allocated, or freed but still read by another stream
    peak_active_bytes: int = 0
    requested_bytes: int = 0  # active, before rounding
    peak_requested_bytes: int = 0
    reserved_bytes: int = 0
    peak_reserved_bytes: int = 0
    inactive_split_bytes: int = 0  # free pieces that cannot be given back: a neighbour is in use
    peak_inactive_split_bytes: int = 0
    num_allocated: int = 0
    peak_num_allocated: int = 0
    num_active: int = 0
    peak_num_active: int = 0
    num_segments: int = 0
    peak_num_segments: int = 0
    num_inactive_split: int = 0
    peak_num_inactive_split: int = 0
    num_allocs: int = 0  # successful allocations ever
    num_alloc_retries: int = 0
    num_ooms: int = 0
    num_device_alloc: int = 0
    num_device_free: int = 0
    num_sync_all_streams: int = 0
    num_oversize_allocated: int = 0
    num_oversize_segments: int = 0
