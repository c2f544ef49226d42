"""The numbers that decide what a CUDA-like caching allocator does with a request.

    requested bytes ──round_request──> block bytes ──segment_bytes──> bytes requested from the device
    free list of a pool ──split_rule──> when a block that is too large for a request is split

`cuda.alloc_conf` and `models.npu` fill in a CudaRules; `cuda.allocator` applies it.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.memory.allocators.blocks import BlockPool
from windtunnel.units import GIB, MIB

__all__ = [
    "BLOCK_BYTES",
    "NEVER",
    "SMALL_BYTES",
    "SMALL_SEGMENT_BYTES",
    "CudaRules",
    "round_request",
    "segment_bytes",
    "split_rule",
]

BLOCK_BYTES = 512  # every block is a multiple of this
SMALL_BYTES = MIB  # up to here a block is in the small pool
SMALL_SEGMENT_BYTES = 2 * MIB
LEAST_OWN_SEGMENT_BYTES = 10 * MIB  # from here a request gets a segment of its own size
NEVER = 1 << 62  # a size no request reaches


@dataclass(frozen=True, slots=True)
class CudaRules:
    """One configuration of the caching allocator.

    `tie` orders free blocks of equal size: by "address" (torch <= 2.11, torch_npu), by age of the
    "block" record (2.12), or by age of the "segment", then address (>= 2.13).
    """

    tie: str = "segment"
    is_expandable: bool = False
    padding_bytes: int = 0  # added to every request; torch_npu adds 32
    large_segment_bytes: int = 20 * MIB
    large_step_bytes: int = 2 * MIB  # large segments are a multiple of it
    large_page_bytes: int = 20 * MIB  # what expandable segments of the large pool grow by
    max_split_bytes: int = NEVER
    max_non_split_rounding_bytes: int = 20 * MIB
    divisions: tuple[int, ...] = (0,) * 16  # steps between powers of two, from 1 MiB up
    gc_threshold: float = 0.0
    memory_fraction: float = 1.0
    is_reclaim_lazy: bool = False  # torch_npu: look for finished streams only when it must
    align_bytes: int = 0  # torch_npu: blocks of 2 MiB and more start at a multiple of it

    @property
    def has_divisions(self) -> bool:
        return any(steps > 1 for steps in self.divisions)


def round_request(rules: CudaRules, n_bytes: int) -> int:
    """Return the block size that serves a request of `n_bytes`."""
    n_bytes += rules.padding_bytes
    if n_bytes < BLOCK_BYTES:
        return BLOCK_BYTES
    steps = rules.divisions[min(max(n_bytes.bit_length() - 21, 0), 15)]
    if steps > 1 and n_bytes > BLOCK_BYTES * steps:
        return _next_division(n_bytes, steps)
    return -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _next_division(n_bytes: int, steps: int) -> int:
    floor = 1 << (n_bytes.bit_length() - 1)
    if n_bytes == floor:
        return n_bytes
    step = floor // steps
    return -(-n_bytes // step) * step if step else floor * 2


def segment_bytes(rules: CudaRules, block_bytes: int) -> int:
    """Return how much is requested from the device when no free block holds `block_bytes`."""
    if block_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < LEAST_OWN_SEGMENT_BYTES and rules.large_step_bytes < GIB:
        return rules.large_segment_bytes
    return -(-block_bytes // rules.large_step_bytes) * rules.large_step_bytes


def split_rule(rules: CudaRules, pool: BlockPool) -> tuple[int, int]:
    """Return the least rest worth splitting off, and the size from which nothing is split."""
    if not pool.can_split:
        return NEVER, NEVER
    if pool.is_small or rules.is_expandable:
        return BLOCK_BYTES, NEVER
    return SMALL_BYTES + 1, rules.max_split_bytes
