"""What a simulation of rematerialisation found, as records a report can print."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.remat.statistics import Statistics

__all__ = ["OutOfMemory", "Outcome", "StepOutcome"]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """One training step."""

    number: int
    base_seconds: float  # what the step takes without rematerialisation
    extra_seconds: float  # recomputing
    evictions: int
    evicted_bytes: int
    rematerialisations: int
    rematerialised_bytes: int
    peak_live_bytes: int  # after every allocation
    peak_seen_bytes: int  # as the runtime's own statistics have it: at operators
    peak_reserved_bytes: int  # 0 without an allocator model
    longest_chain: int
    allocation_retries: int  # allocations that succeeded only after evicting
    cache_flushes: int  # times the allocator had to release its cache to find room

    @property
    def slowdown(self) -> float:
        """1.0: nothing was recomputed."""
        return 1.0 + self.extra_seconds / self.base_seconds if self.base_seconds else 1.0


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Where the device was full, with nothing left to evict."""

    step: int
    operator: str
    place: str  # "layers.3.mlp, forward"
    requested_bytes: int
    live_bytes: int
    evictable_bytes: int  # more than 0 in backward, whose own allocations cannot wait for an eviction


@dataclass(frozen=True)
class Outcome:
    """What one threshold leads to."""

    threshold: int | None
    steps: tuple[StepOutcome, ...]
    statistics: Statistics  # the engine's own, over the whole run
    unevictable_bytes: int  # the most in use at any time besides evictable bytes
    floor_bytes: int  # the same at the operators where the runtime acts: no lower threshold can be held
    out_of_memory: OutOfMemory | None

    @property
    def last_step(self) -> StepOutcome | None:
        """The step that represents all later ones."""
        return self.steps[-1] if self.steps else None
