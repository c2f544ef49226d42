"""Counters of rematerialisation, for users to read and programs to compare."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Statistics"]


@dataclass
class Statistics:
    evictions: int = 0
    evicted_bytes: int = 0
    eviction_seconds: float = 0.0  # measured: choosing and dropping
    rematerialisations: int = 0
    rematerialised_bytes: int = 0
    recompute_cost: float = 0.0  # seconds, as the cost table has it
    rematerialisation_seconds: float = 0.0  # as measured; 0 in a simulation
    peak_live_bytes: int = 0  # as seen at operators
    longest_chain: int = 0  # values recomputed to get one back
    least_reached_bytes: int = 0  # above 0: the limit was below what could not be evicted; this was reached
    guarded_rounds: int = 0  # in which the guard stopped evicting
    raised_limit_bytes: int = 0  # the limit the guard uses instead of the threshold
    failed_allocations: int = 0  # that succeeded after evicting
