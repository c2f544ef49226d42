"""Which value to forget next: one function per policy, the smallest score goes first.

    candidates, clock ──> score ──> the value whose loss hurts least

A policy reads the public attributes of a `Value` and nothing else, so the simulators and the live runtime choose
alike.
"""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.errors import UsageError
from windtunnel.remat.value import Value

__all__ = ["POLICIES", "Policy", "largest", "local", "lru", "neighbour_cost", "policy_named"]

Policy = Callable[[Value, float], float]  # (value, now) -> score

_SHORTEST_IDLE_S = 1e-6  # a value used this very moment is not infinitely precious


def neighbour_cost(value: Value) -> float:
    """Seconds to compute every evicted value connected to this one, as far as union-find knows."""
    total, seen = 0.0, set()
    for other in (*value.parents, *value.children):
        if other.neighbourhood is not None:
            root = other.neighbourhood.root
            if id(root) not in seen:
                seen.add(id(root))
                total += root.cost
    return total


def dtr(value: Value, now: float) -> float:
    """Cheap to have again, large, long unused (Kirisame et al., ICLR 2021)."""
    return (value.cost + neighbour_cost(value)) / (value.n_bytes * _idle(value, now))


def local(value: Value, now: float) -> float:
    """As `dtr`, but blind to what is already evicted around it."""
    return value.cost / (value.n_bytes * _idle(value, now))


def lru(value: Value, now: float) -> float:
    """Longest unused first."""
    return value.last_used


def largest(value: Value, now: float) -> float:
    """Largest first."""
    return 1.0 / value.n_bytes


POLICIES: dict[str, Policy] = {"dtr": dtr, "local": local, "lru": lru, "largest": largest}


def policy_named(name: str) -> Policy:
    if name not in POLICIES:
        raise UsageError(f"there is no policy {name!r}", hint=f"try one of {', '.join(POLICIES)}")
    return POLICIES[name]


def _idle(value: Value, now: float) -> float:
    return max(now - value.last_used, _SHORTEST_IDLE_S)
