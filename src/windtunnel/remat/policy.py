"""Which value to evict next: one function per policy; the smallest score is evicted first.

    candidates, clock ──> score ──> the value that is cheapest to evict

A policy reads only the public attributes of a `Value`, so the simulators and the live runtime make the same choice.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from windtunnel.errors import UsageError
from windtunnel.remat.value import Neighbourhood, Value

__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "Policy",
    "ancestors",
    "dtr",
    "largest",
    "local",
    "lru",
    "msps",
    "neighbour_cost",
    "policy_named",
]

Policy = Callable[[Value, float], float]  # (value, now) -> score


def neighbour_cost(value: Value) -> float:
    """Seconds to compute every evicted value connected to this one, as estimated by union-find."""
    total: float = 0
    seen: list[Neighbourhood] = []
    for near in (value.parents, value.children):
        for other in near:
            if other.neighbourhood is not None:
                root = other.neighbourhood.root
                if root not in seen:
                    seen.append(root)
                    total += root.cost
    return total


def dtr(value: Value, now: float) -> float:
    """Cheap to rematerialise, large, long unused (Kirisame et al., ICLR 2021)."""
    gain = value.n_bytes * (now - value.last_used)
    return (value.cost + neighbour_cost(value)) / gain if gain > 0 else inf


def local(value: Value, now: float) -> float:
    """As `dtr`, but without the evicted values around it."""
    gain = value.n_bytes * (now - value.last_used)
    return value.cost / gain if gain > 0 else inf


def lru(value: Value, now: float) -> float:
    """Longest unused first."""
    return value.last_used


def largest(value: Value, now: float) -> float:
    """Largest first."""
    return 1 / value.n_bytes if value.n_bytes else inf


def msps(value: Value, now: float) -> float:
    """Least compute for a byte, counting evicted ancestors (Peng et al., ASPLOS 2020, "memory saving per second")."""
    return (value.cost + value.ancestor_cost()) / value.n_bytes if value.n_bytes else inf


def ancestors(value: Value, now: float) -> float:
    """As `dtr`, but counting only evicted ancestors.

    Backward needs values in reverse order: the descendants of a value have been used before the value itself is
    needed, so their eviction does not make it more expensive.
    """
    gain = value.n_bytes * (now - value.last_used)
    return (value.cost + value.known_ancestor_cost()) / gain if gain > 0 else inf


POLICIES: dict[str, Policy] = {
    "dtr": dtr,
    "local": local,
    "lru": lru,
    "largest": largest,
    "msps": msps,
    "ancestors": ancestors,
}


# The best of them for backward, which needs saved values in reverse order: see benchmarks.dtr.policies.
DEFAULT_POLICY = "ancestors"


def policy_named(name: str) -> Policy:
    if name not in POLICIES:
        raise UsageError(f"there is no policy {name!r}", hint=f"try one of {', '.join(POLICIES)}")
    return POLICIES[name]
