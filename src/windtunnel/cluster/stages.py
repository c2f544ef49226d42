"""The stages of the pipeline that a rank is part of.

timelines, one rank ──> the axis along which it sends and receives ──> ranks along that axis, in order
"""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.cluster.mesh import mesh_of, pattern_of
from windtunnel.cluster.program import RankTimeline

__all__ = ["stages_around"]


def stages_around(rank: int, timelines: Mapping[int, RankTimeline], world_size: int) -> tuple[int, ...]:
    """Return the simulated ranks of its pipeline, itself included; only itself if it has no neighbours."""
    program = timelines[rank].program
    mesh = mesh_of(timelines[min(timelines)].program.groups, world_size)
    # Peers are those of the rank that the program belongs to; relative to this rank they are at the same places.
    patterns = (pattern_of((program.rank, peer), mesh)[0] for peer in program.peers)
    axes = [pattern[0] for pattern in patterns if len(pattern) == 1]
    if not axes:
        return (rank,)
    axis = mesh.axes[max(axes)]  # a ring inside a stage is on an axis further in than the stages
    first = rank - rank // axis.stride % axis.size * axis.stride
    stages = range(first, first + axis.size * axis.stride, axis.stride)
    return tuple(stage for stage in stages if stage in timelines)
