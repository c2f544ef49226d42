"""Check that what the ranks say to each other fits together; what does not would hang on a cluster.

RankTalk of each class ──> the same group's calls side by side ──> first difference ──> Mismatch
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from windtunnel.cluster.talk import RankTalk

__all__ = ["Mismatch", "find_mismatches"]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Two ranks that wait for different things."""

    ranks: tuple[int, ...]
    sentence: str


def find_mismatches(
    talks: Mapping[int, RankTalk], representative: Mapping[int, int], world_size: int
) -> tuple[Mismatch, ...]:
    """Compare the simulated ranks' calls; `representative` says who stands for each rank of the world."""
    raise NotImplementedError
