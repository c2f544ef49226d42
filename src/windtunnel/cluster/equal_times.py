"""Find the ranks that pass through a step at the same times.

    ranks with equal work ──> split by the kinds of their groups and peers, until nothing changes ──> a number per rank

Equal work is not enough: the middle stages of a pipeline do the same work at different times, because only one of them
is next to the first stage. And of two ranks with equal work, the one with a slow neighbour waits. So kinds of ranks are
refined by the kinds of their neighbours (colour refinement). Neighbours' numbers are summed, which makes a round cost
little more than one addition per rank and group.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from windtunnel.cluster.mesh import Mesh
from windtunnel.cluster.program import StepProgram

__all__ = ["MOST_KINDS", "MovedProgram", "equal_ranks"]

MOST_KINDS = 1024  # beyond this, differences that only collectives show are ignored: they are small then


class MovedProgram:
    """A program moved to other ranks of the mesh: groups and peers keep their places relative to the rank."""

    def __init__(self, ranks: np.ndarray, program: StepProgram, mesh: Mesh) -> None:
        self.ranks, self.program, self._mesh = ranks, program, mesh
        self._strides = np.array([axis.stride for axis in mesh.axes], np.int64)
        self._sizes = np.array([axis.size for axis in mesh.axes], np.int64)
        self._shift = mesh.digits(ranks) - mesh.digits([program.rank])

    def groups(self) -> list[tuple[int, ...]]:
        """Members of each group of the program, moved to the first of the ranks."""
        found = []
        for members in self.program.groups:
            digits = (self._mesh.digits(members) + self._shift[:1]) % self._sizes
            found.append(tuple((digits @ self._strides).tolist()))
        return found

    def of(self, rank: int) -> np.ndarray:
        """For each of the ranks, the rank that is to it what `rank` is to the program's own rank."""
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


def equal_ranks(
    known: Mapping[int, int], programs: Mapping[int, StepProgram], mesh: Mesh, world_size: int
) -> tuple[np.ndarray, bool]:
    """Return a number for every rank of the world, equal where times are equal and -1 where unknown.

    Also return whether all ranks that differ have different numbers.
    """
    source = np.full(world_size, -1, np.int64)
    source[list(known)] = list(known.values())
    kinds = np.unique(source, return_inverse=True)[1].reshape(-1)
    moved = [
        MovedProgram(np.flatnonzero(source == rank), programs[rank], mesh)
        for rank in sorted(set(known.values()))
    ]
    refined = _refined(kinds, source, moved, by_groups=True)
    is_exact = bool(refined.max(initial=0) < MOST_KINDS)
    if not is_exact:
        refined = _refined(kinds, source, moved, by_groups=False)
    return np.where(source < 0, -1, refined), is_exact


def _refined(
    kinds: np.ndarray, source: np.ndarray, moved: list[MovedProgram], *, by_groups: bool
) -> np.ndarray:
    n_before, n_kinds = -1, int(kinds.max(initial=-1)) + 1
    while n_before < n_kinds and (n_kinds <= MOST_KINDS or not by_groups):
        numbers = np.where(source < 0, np.uint64(0), _scattered(kinds))
        seen = numbers.copy()
        for each in moved:
            seen[each.ranks] = _neighbourhood(each, numbers, by_groups=by_groups)
        kinds = np.unique(seen, return_inverse=True)[1].reshape(-1)
        n_before, n_kinds = n_kinds, int(kinds.max(initial=-1)) + 1
    return kinds


def _neighbourhood(moved: MovedProgram, numbers: np.ndarray, *, by_groups: bool) -> np.ndarray:
    """A number for the kind of each rank together with the kinds of its groups and peers."""
    found = numbers[moved.ranks]
    program = moved.program
    for peer in program.peers:
        found = _scattered(found) + numbers[moved.of(peer)]
    for index in program.called_groups if by_groups else ():
        found = _scattered(found) + moved.group_sums(index, numbers)
    return found


def _scattered(values: np.ndarray) -> np.ndarray:
    """Pseudo-random values, equal where these are equal (the finisher of splitmix64)."""
    mixed = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
