"""Choose the ranks that a timeline simulates, and the one that represents each other rank of the world.

    programs of the simulated ranks, representative of each rank ──> Representatives, each with its groups and peers

One rank represents all ranks that pass through the step at the same times; `equal_times.py` finds them. A rank without a
program of its own gets that of the rank that does the same work, with groups and peers moved to its own place in
the mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from windtunnel.cluster.equal_times import MovedProgram, equal_ranks
from windtunnel.cluster.mesh import Mesh, mesh_of, pattern_of
from windtunnel.cluster.program import StepProgram

__all__ = ["Representative", "Representatives", "SharedGroup", "representatives_of"]


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """A process group reduced to representatives: equal for all representatives that call in it together."""

    ranks: tuple[int, ...]  # representatives only
    pattern: tuple[tuple[int, ...], int]  # axes of the mesh, and the number among groups with the same axes


@dataclass(frozen=True)
class Representative:
    """One rank of the timeline."""

    rank: int
    program: StepProgram
    peers: Mapping[int, int]  # peer as the program names it -> its representative; unknown peers are left out
    groups: tuple[SharedGroup, ...]  # one for each group of the program


@dataclass(frozen=True)
class Representatives:
    ranks: tuple[Representative, ...]
    image: Mapping[int, int]  # every known rank of the world -> its representative
    is_exact: bool = (
        True  # False: there are more than MOST_KINDS kinds of ranks, and some share a representative
    )


def representatives_of(
    programs: Mapping[int, StepProgram], representative: Mapping[int, int], world_size: int
) -> Representatives:
    """Choose the representatives. Ranks for which there is no program are left out."""
    known = {rank: source for rank, source in representative.items() if source in programs}
    mesh = mesh_of(programs[min(programs)].groups, world_size)
    numbers, is_exact = equal_ranks(known, programs, mesh, world_size)
    kinds = numbers.tolist()
    chosen: dict[int, int] = {}
    for rank in sorted(known, key=lambda rank: (known[rank] != rank, rank)):  # simulated ranks first
        chosen.setdefault(kinds[rank], rank)
    image = {rank: chosen[kinds[rank]] for rank in sorted(known)}
    ranks = tuple(
        _representative(MovedProgram(np.array([rank]), programs[known[rank]], mesh), image, mesh)
        for rank in sorted(chosen.values())
    )
    return Representatives(ranks, image, is_exact)


def _representative(moved: MovedProgram, image: Mapping[int, int], mesh: Mesh) -> Representative:
    rank, program = int(moved.ranks[0]), moved.program
    places = {peer: int(moved.of(peer)[0]) for peer in program.peers}
    peers = {peer: image[place] for peer, place in places.items() if place in image}
    return Representative(rank, program, peers, _shared_groups(moved, image, mesh))


def _shared_groups(moved: MovedProgram, image: Mapping[int, int], mesh: Mesh) -> tuple[SharedGroup, ...]:
    seen: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    found = []
    for members in moved.groups():
        ranks = tuple(sorted({image[rank] for rank in members if rank in image} | {int(moved.ranks[0])}))
        axes = pattern_of(members, mesh)[0]
        nth = seen.get((ranks, axes), 0)
        seen[ranks, axes] = nth + 1
        found.append(SharedGroup(ranks, (axes, nth)))
    return tuple(found)
