"""Which ranks a timeline plays, and who of them stands for each other rank of the world.

    programs of the simulated ranks, who stands for whom ──> Cast: ranks that play, each with its groups and peers

Ranks that send to each other (the stages of a pipeline) wait for each other one by one, so they play together: one
whole pipeline for each distinct kind of pipeline. Everyone else is played by the rank that does the same work. A rank
that was not simulated itself has the program of its representative, with groups and peers moved to where it lies in
the mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

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


def cast_of(programs: Mapping[int, StepProgram], representative: Mapping[int, int], world_size: int) -> Cast:
    """Choose the players; ranks whose representative has no program are left out."""
    known = {rank: shown for rank, shown in representative.items() if shown in programs}
    first = programs[min(programs)]
    mesh = mesh_of(first.groups, world_size)
    pipelines = _connected(known, programs, mesh)
    image: dict[int, int] = {}
    chosen: dict[tuple[int, ...], list[int]] = {}
    # Pipelines with simulated ranks first, so that as many ranks as can be play themselves.
    for ranks in sorted(pipelines, key=lambda ranks: (-sum(known[r] == r for r in ranks), ranks)):
        kind = tuple(known[rank] for rank in ranks)
        image.update(zip(ranks, chosen.setdefault(kind, ranks), strict=True))
    moved = {rank: _Moved(rank, programs[known[rank]], mesh) for rank in sorted(set(image.values()))}
    meetings = {rank: _meetings(each, image, mesh) for rank, each in moved.items()}
    players = tuple(
        Player(
            rank, each.program, {p: image[q] for p, q in each.peers().items() if q in image}, meetings[rank]
        )
        for rank, each in moved.items()
    )
    return Cast(players, image)


class _Moved:
    """A representative's program at another place of the mesh."""

    def __init__(self, rank: int, program: StepProgram, mesh: Mesh) -> None:
        self.rank, self.program, self._mesh = rank, program, mesh
        self._strides = np.array([axis.stride for axis in mesh.axes], np.int64)
        self._sizes = np.array([axis.size for axis in mesh.axes], np.int64)
        here, there = mesh.digits([program.rank, rank])
        self._shift = there - here

    def peers(self) -> dict[int, int]:
        return dict(zip(self.program.peers, self._move(self.program.peers), strict=True))

    def group(self, index: int) -> tuple[int, ...]:
        return tuple(self._move(self.program.groups[index]))

    def _move(self, ranks: tuple[int, ...]) -> list[int]:
        if not self._shift.any() or not ranks:
            return list(ranks)
        digits = (self._mesh.digits(ranks) + self._shift) % self._sizes
        return (digits @ self._strides).tolist()


def _connected(known: Mapping[int, int], programs: Mapping[int, StepProgram], mesh: Mesh) -> list[list[int]]:
    """The known ranks, in sets of those that send to each other; each set in order."""
    root = {rank: rank for rank in known}

    def find(rank: int) -> int:
        while root[rank] != rank:
            root[rank] = root[root[rank]]
            rank = root[rank]
        return rank

    for rank, shown in known.items():
        if not programs[shown].peers:
            continue
        for peer in _Moved(rank, programs[shown], mesh).peers().values():
            if peer in root:
                one, other = find(rank), find(peer)
                root[max(one, other)] = min(one, other)
    sets: dict[int, list[int]] = {}
    for rank in sorted(known):
        sets.setdefault(find(rank), []).append(rank)
    return list(sets.values())


def _meetings(moved: _Moved, image: Mapping[int, int], mesh: Mesh) -> tuple[Meeting, ...]:
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    found = []
    for index in range(len(moved.program.groups)):
        ranks = moved.group(index)
        players = tuple(sorted({image[rank] for rank in ranks if rank in image} | {moved.rank}))
        axes = pattern_of(ranks, mesh)[0]
        nth = alike.get((players, axes), 0)
        alike[players, axes] = nth + 1
        found.append(Meeting(players, (axes, nth)))
    return tuple(found)
