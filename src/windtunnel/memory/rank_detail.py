"""Every allocation of a rank with its life, for a reader who zooms in, and the allocator's map at the peaks.

recording, Allocator ──> RankDetail (columns)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.events.model import Recording
from windtunnel.memory.allocator import Allocator

__all__ = ["RankDetail", "rank_detail"]


@dataclass(frozen=True)
class RankDetail:
    n_rows: int


def rank_detail(
    recording: Recording,
    make_allocator: Callable[[int | None], Allocator],
    device: int = 0,
    most_allocations: int = 400_000,
) -> RankDetail:
    return RankDetail(len(recording))
