"""What one rank has to do with the others: its groups, its calls, and a digest of its work.

    Recording of a rank ──> RankTalk ──> classes (who does the same?), matching (does it fit together?)
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.events.model import Recording

__all__ = ["Call", "RankTalk", "talk_of"]


@dataclass(frozen=True, slots=True)
class Call:
    """One collective, send or receive, as its peers see it."""

    kind: str  # "all_reduce"
    source: str  # "train.py:41"


@dataclass(frozen=True)
class RankTalk:
    """Everything that must be known of one rank to place it among the others. Small; can be pickled."""

    rank: int
    world_size: int
    groups: tuple[tuple[int, ...], ...]  # global ranks, in order of creation
    digest: str  # equal for ranks that do the same work
    calls: tuple[tuple[Call, ...], ...]  # per group, in program order


def talk_of(recording: Recording, rank: int, world_size: int) -> RankTalk:
    """Read a rank's recording."""
    raise NotImplementedError
