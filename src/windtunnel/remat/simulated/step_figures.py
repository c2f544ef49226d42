"""Figures of the step that runs, and the steps that are done.

running totals of the engine and the memory ──> end(step) ──> StepOutcome: what this step added
"""

from __future__ import annotations

from typing import Any

from windtunnel.remat.simulated.memory import Memory
from windtunnel.remat.simulated.outcome import StepOutcome
from windtunnel.remat.statistics import Statistics

__all__ = ["StepFigures"]


class StepFigures:
    def __init__(self, memory: Memory, statistics: Statistics) -> None:
        self.done: list[StepOutcome] = []
        self.base_seconds = 0.0
        self._memory = memory
        self._statistics = statistics
        self._before = self._totals()
        self._peak_seen = self._longest_chain = 0

    def end(self, number: int) -> None:
        memory, statistics = self._memory, self._statistics
        now = self._totals()
        gained = {name: now[name] - self._before[name] for name in now}
        self.done.append(
            StepOutcome(
                number=number, base_seconds=self.base_seconds, **gained,
                peak_live_bytes=memory.peak_live_bytes, peak_seen_bytes=statistics.peak_live_bytes,
                peak_reserved_bytes=memory.peak_reserved_bytes, longest_chain=statistics.longest_chain,
            )
        )  # fmt: skip
        self._before, self.base_seconds = now, 0.0
        self._peak_seen = max(self._peak_seen, statistics.peak_live_bytes)
        self._longest_chain = max(self._longest_chain, statistics.longest_chain)
        statistics.peak_live_bytes = statistics.longest_chain = 0
        memory.begin_step()

    def close(self) -> None:
        """Give the engine's statistics back the maxima over all steps."""
        self._statistics.peak_live_bytes = max(self._peak_seen, self._statistics.peak_live_bytes)
        self._statistics.longest_chain = max(self._longest_chain, self._statistics.longest_chain)

    def _totals(self) -> dict[str, Any]:
        found, allocator = self._statistics, self._memory.allocator
        return {
            "extra_seconds": found.recompute_cost,
            "evictions": found.evictions,
            "evicted_bytes": found.evicted_bytes,
            "rematerialisations": found.rematerialisations,
            "rematerialised_bytes": found.rematerialised_bytes,
            "allocation_retries": found.failed_allocations,
            "cache_flushes": allocator.stats().num_alloc_retries if allocator is not None else 0,
        }
