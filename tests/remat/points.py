"""Points of a curve, made by hand."""

from __future__ import annotations

from windtunnel.remat.simulated.curve import Point
from windtunnel.remat.simulated.outcome import Outcome, OutOfMemory, StepOutcome
from windtunnel.remat.statistics import Statistics
from windtunnel.units import GIB, MIB


def point(
    threshold_gib: float | None,
    slowdown: float,
    reserved_gib: float,
    *,
    fits: bool = True,
    policy: str = "dtr",
    n_retries: int = 0,
    first_peak_gib: float | None = None,
    first_slowdown: float | None = None,
    guarded_rounds: int = 0,
) -> Point:
    """A run of two steps of one second each; live bytes are 1 GiB below what is reserved."""
    failure = None if fits else OutOfMemory(1, "aten.mul.Tensor", "layers.3, backward", 64 * MIB, GIB, 0)
    first = _step(1, first_slowdown or slowdown, first_peak_gib or reserved_gib, 0)
    steps = (first, _step(2, slowdown, reserved_gib, n_retries))
    threshold = None if threshold_gib is None else int(threshold_gib * GIB)
    statistics = Statistics(longest_chain=4, guarded_rounds=guarded_rounds)
    outcome = Outcome(
        threshold=threshold,
        steps=steps,
        statistics=statistics,
        unevictable_bytes=GIB,
        floor_bytes=GIB,
        out_of_memory=failure,
    )
    return Point(None if threshold_gib is None else policy, outcome, failure)


def _step(number: int, slowdown: float, reserved_gib: float, n_retries: int) -> StepOutcome:
    n_again = round((slowdown - 1) * 100)
    reserved = int(reserved_gib * GIB)
    return StepOutcome(
        number=number,
        base_seconds=1.0,
        extra_seconds=slowdown - 1,
        evictions=n_again + 1,
        evicted_bytes=(n_again + 1) * MIB,
        rematerialisations=n_again,
        rematerialised_bytes=n_again * MIB,
        peak_live_bytes=reserved - GIB,
        peak_seen_bytes=reserved - GIB,
        peak_reserved_bytes=reserved,
        longest_chain=4,
        allocation_retries=n_retries,
        cache_flushes=0,
    )
