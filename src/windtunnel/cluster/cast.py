"""Which ranks a timeline plays, and who of them stands for each other rank of the world.

    programs of the simulated ranks, who stands for whom ──> Cast: ranks that play, each with its groups and peers

One rank plays for all that go through the step at the same times, which `alike` finds. A rank that was not simulated
itself has the program of its representative, with groups and peers moved to where it lies in the mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from windtunnel.cluster.alike import MovedProgram, alike
from windtunnel.cluster.mesh import Mesh, mesh_of, pattern_of
from windtunnel.cluster.program import StepProgram

__all__ = ["Cast", "Meeting", "Player", "cast_of"]


@dataclass(frozen=True, slots=True)
class Meeting:
    """A group as the players see it: equal for all players that meet in it."""

    players: tuple[int, ...]
    pattern: tuple[tuple[int, ...], int]  # axes of the mesh, and which of several groups that lie alike


@dataclass(frozen=True)
class Player:
    """One rank that plays."""

    rank: int
    program: StepProgram
    peers: Mapping[
        int, int
    ]  # peer as the program names it -> the player there; without: nobody is known there
    meetings: tuple[Meeting, ...]  # one for each group of the program


@dataclass(frozen=True)
class Cast:
    players: tuple[Player, ...]
    image: Mapping[int, int]  # every known rank of the world -> the player that stands for it
    is_exact: bool = True  # False: there are more than MOST_KINDS kinds of ranks, and some share a player


def cast_of(programs: Mapping[int, StepProgram], representative: Mapping[int, int], world_size: int) -> Cast:
    """Choose the players; ranks whose representative has no program are left out."""
    known = {rank: shown for rank, shown in representative.items() if shown in programs}
    mesh = mesh_of(programs[min(programs)].groups, world_size)
    numbers, is_exact = alike(known, programs, mesh, world_size)
    kinds = numbers.tolist()
    chosen: dict[int, int] = {}
    for rank in sorted(known, key=lambda rank: (known[rank] != rank, rank)):  # simulated ranks first
        chosen.setdefault(kinds[rank], rank)
    image = {rank: chosen[kinds[rank]] for rank in sorted(known)}
    players = tuple(
        _player(MovedProgram(np.array([rank]), programs[known[rank]], mesh), image, mesh)
        for rank in sorted(chosen.values())
    )
    return Cast(players, image, is_exact)


def _player(moved: MovedProgram, image: Mapping[int, int], mesh: Mesh) -> Player:
    rank, program = int(moved.ranks[0]), moved.program
    places = {peer: int(moved.of(peer)[0]) for peer in program.peers}
    peers = {peer: image[place] for peer, place in places.items() if place in image}
    return Player(rank, program, peers, _meetings(moved, image, mesh))


def _meetings(moved: MovedProgram, image: Mapping[int, int], mesh: Mesh) -> tuple[Meeting, ...]:
    seen: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    found = []
    for ranks in moved.groups():
        players = tuple(sorted({image[rank] for rank in ranks if rank in image} | {int(moved.ranks[0])}))
        axes = pattern_of(ranks, mesh)[0]
        nth = seen.get((players, axes), 0)
        seen[players, axes] = nth + 1
        found.append(Meeting(players, (axes, nth)))
    return tuple(found)
