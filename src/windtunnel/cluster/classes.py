"""Find the ranks that do the same work, simulating as few of them as possible.

    RankTalk of rank 0 ──> mesh axes ──> positions to look at ──> RankTalk of each ──> every rank's representative
"""

from __future__ import annotations

from windtunnel.cluster.talk import RankTalk

__all__ = ["RankClasses"]


class RankClasses:
    """Which ranks to simulate, and which of them stands for each rank of the world."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size

    def wanted(self) -> tuple[int, ...]:
        """Ranks to simulate next, all at once if you can; none when every class is known."""
        raise NotImplementedError

    def learn(self, talk: RankTalk | None, rank: int) -> None:
        """Take in a simulated rank, asked for or not. None: it failed, and is a class of its own."""
        raise NotImplementedError

    def representatives(self) -> dict[int, int]:
        """Every rank of the world, and the simulated rank that stands for it."""
        raise NotImplementedError
