"""Which ranks go through a step at the same times: same work, and the same said of everyone they wait for.

    who does the same work ──> told apart by whom they meet and talk to, until nothing is told apart ──> a number per rank

The middle stages of a pipeline do the same work at different times: one lies next to the first stage, one does not. And
of two ranks that do the same, the one whose neighbour is slow waits. Numbers of neighbours are added up, so each round
costs little more than an addition per rank and group.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from windtunnel.cluster.mesh import Mesh
from windtunnel.cluster.program import StepProgram

__all__ = ["MOST_KINDS", "MovedProgram", "alike"]

MOST_KINDS = 1024  # beyond, differences seen only through collectives are let be: they are small then


class MovedProgram:
    """A program at other places of the mesh than its own: groups and peers lie around each of these ranks alike."""

    def __init__(self, ranks: np.ndarray, program: StepProgram, mesh: Mesh) -> None:
        self.ranks, self.program, self._mesh = ranks, program, mesh
        self._strides = np.array([axis.stride for axis in mesh.axes], np.int64)
        self._sizes = np.array([axis.size for axis in mesh.axes], np.int64)
        self._shift = mesh.digits(ranks) - mesh.digits([program.rank])

    def groups(self) -> list[tuple[int, ...]]:
        """Members of each group of the program, around the first of the ranks."""
        found = []
        for members in self.program.groups:
            digits = (self._mesh.digits(members) + self._shift[:1]) % self._sizes
            found.append(tuple((digits @ self._strides).tolist()))
        return found

    def of(self, rank: int) -> np.ndarray:
        """The place, for each of the ranks, that `rank` is for the program's own."""
        return (self._mesh.digits([rank]) + self._shift) % self._sizes @ self._strides

    def group_sums(self, index: int, numbers: np.ndarray) -> np.ndarray:
        """The sum of the members' numbers in a group of the program."""
        members = self.program.groups[index]
        digits = self._mesh.digits(members)
        axes = np.flatnonzero((digits != digits[:1]).any(axis=0))
        if len(members) == self._sizes[axes].prod():  # all positions on some axes
            whole = numbers.reshape(self._sizes[::-1])
            along = tuple((len(self._sizes) - 1 - axes).tolist())
            return np.broadcast_to(whole.sum(axis=along, keepdims=True), whole.shape).reshape(-1)[self.ranks]
        return sum((numbers[self.of(member)] for member in members), np.zeros(len(self.ranks), np.uint64))


def alike(
    known: Mapping[int, int], programs: Mapping[int, StepProgram], mesh: Mesh, world_size: int
) -> tuple[np.ndarray, bool]:
    """A number for every rank of the world, equal for those whose times are equal; -1 for ranks not known.

    And whether all that differs was told apart.
    """
    shown = np.full(world_size, -1, np.int64)
    shown[list(known)] = list(known.values())
    kinds = np.unique(shown, return_inverse=True)[1].reshape(-1)
    moved = [
        MovedProgram(np.flatnonzero(shown == rank), programs[rank], mesh)
        for rank in sorted(set(known.values()))
    ]
    told = _told_apart(kinds, shown, moved, by_groups=True)
    is_exact = bool(told.max(initial=0) < MOST_KINDS)
    if not is_exact:
        told = _told_apart(kinds, shown, moved, by_groups=False)
    return np.where(shown < 0, -1, told), is_exact


def _told_apart(
    kinds: np.ndarray, shown: np.ndarray, moved: list[MovedProgram], *, by_groups: bool
) -> np.ndarray:
    n_before, n_kinds = -1, int(kinds.max(initial=-1)) + 1
    while n_before < n_kinds and (n_kinds <= MOST_KINDS or not by_groups):
        numbers = np.where(shown < 0, np.uint64(0), _scattered(kinds))
        seen = numbers.copy()
        for each in moved:
            seen[each.ranks] = _neighbourhood(each, numbers, by_groups=by_groups)
        kinds = np.unique(seen, return_inverse=True)[1].reshape(-1)
        n_before, n_kinds = n_kinds, int(kinds.max(initial=-1)) + 1
    return kinds


def _neighbourhood(moved: MovedProgram, numbers: np.ndarray, *, by_groups: bool) -> np.ndarray:
    """A number that says what kind a rank is, and of what kinds those are that it meets and talks to."""
    found = numbers[moved.ranks]
    program = moved.program
    for peer in program.peers:
        found = _scattered(found) + numbers[moved.of(peer)]
    for index in program.called_groups if by_groups else ():
        found = _scattered(found) + moved.group_sums(index, numbers)
    return found


def _scattered(values: np.ndarray) -> np.ndarray:
    """Other values that are as good as random, equal where these are equal (the finisher of splitmix64)."""
    mixed = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
