"""Find the ranks that do the same work, simulating as few of them as possible.

    RankCommunication of rank 0 ──> mesh axes ──> positions to simulate ──> classes ──> representative of every rank

The outermost axis is sorted into classes first, then the next one once in each class, and so on inwards, so an
irregularity that only the last stage has is found there. Along an axis, two equal positions with an equal one between
them are taken for a run of equals; where positions differ, the boundary is found by bisection. The line through rank 0
is the model for all other lines along the same axis: they are simulated first where its runs begin and end, and a run
of the model whose ends are equal on another line is a run there too. At both ends of a run the last rank inside is
simulated as well as the first, because an uneven remainder of anything divided over several axes is there. Apart from
the bisection, the cost does not depend on the length of an axis.

Ranks do the same work if they allocate, free and call the same in the same order. With a flat sharded optimizer no two
ranks do, because each rank's equal share is cut at other tensors. So ranks count as equal once several of them differ
although their model and calls are the same and their peaks are within a millionth.

The next ranks to simulate are computed from scratch from what is known, so the order of results does not matter.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from windtunnel.cluster.mesh import Mesh, mesh_of
from windtunnel.cluster.rank_communication import RankCommunication

__all__ = ["RankClasses"]

_FAILED = "failed"  # no digest looks like this
_MOST_RUNS = 8  # of a model line that is worth following
_TOLERANCE = 1e-6  # of the peak, and 1 KiB: sharded optimizer state differs by this much from rank to rank
_MANY_CLASSES = 3  # that differ within the tolerance: fewer may be an uneven remainder, worth its own class
_SMALL_WORLD = 8  # ranks of one machine: all of them are simulated, since any of them may have a mistake


class RankClasses:
    """Which ranks to simulate, and which of them represents each rank of the world."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._communications: dict[int, RankCommunication | None] = {}

    def wanted(self) -> tuple[int, ...]:
        """Ranks to simulate next, in parallel if possible; empty once every class is known."""
        if 0 not in self._communications:
            return (0,)
        if self._world_size <= _SMALL_WORLD:
            return tuple(rank for rank in range(self._world_size) if rank not in self._communications)
        survey = _Survey(self._classes(), self._mesh())
        survey.block(0, len(survey.mesh.axes))
        return tuple(sorted(survey.missing))

    @property
    def n_overlooked(self) -> int:
        """Number of positions that a group singles out but that were not simulated, because there were too many."""
        return self._mesh().n_overlooked

    def learn(self, communication: RankCommunication | None, rank: int) -> None:
        """Add the result of a simulated rank, requested or not. None: it failed, and is in a class of failed ranks."""
        self._communications[rank] = communication

    def representatives(self) -> dict[int, int]:
        """Map every rank of the world to the simulated rank that represents it: the lowest of its class.

        A rank that failed represents itself, and the ranks that would do the same. Until every class is known
        this is the best guess.
        """
        if 0 not in self._communications:
            raise ValueError("rank 0 has not been simulated, so nothing is known about the other ranks")
        classes = self._classes()
        survey = _Survey(classes, self._mesh())
        digests, _ = survey.block(0, len(survey.mesh.axes))
        lowest: dict[str, int] = {}
        for rank in sorted(classes):
            lowest.setdefault(classes[rank], rank)
        found = dict(enumerate(survey.representatives(digests, lowest)))
        for rank, digest in classes.items():
            found[rank] = rank if digest == _FAILED else lowest[digest]
        return found

    def _mesh(self) -> Mesh:
        known = (
            communication
            for _, communication in sorted(self._communications.items())
            if communication is not None
        )
        first = next(known, None)
        return mesh_of(first.groups if first is not None else (), self._world_size)

    def _classes(self) -> dict[int, str]:
        """The class of every simulated rank: its digest, or that of the first rank within the tolerance."""
        exact = {
            rank: _FAILED if communication is None else communication.digest
            for rank, communication in self._communications.items()
        }
        known_by_rough: dict[str, list[RankCommunication]] = {}
        rough = dict(exact)
        for rank, communication in sorted(self._communications.items()):
            if communication is None or not communication.rough_digest:
                continue
            known = known_by_rough.setdefault(communication.rough_digest, [])
            like = next((k for k in known if _differ_within_tolerance(communication, k)), None)
            if like is None:
                known.append(communication)
            else:
                rough[rank] = like.digest
        n_merged = len(set(exact.values())) - len(set(rough.values()))
        return rough if n_merged >= _MANY_CLASSES else exact


def _differ_within_tolerance(communication: RankCommunication, other: RankCommunication) -> bool:
    return abs(communication.peak_bytes - other.peak_bytes) <= max(_TOLERANCE * other.peak_bytes, 1 << 10)


class _Survey:
    """The class of every rank as far as it is known, and the ranks still to be simulated to be sure."""

    def __init__(self, digests: dict[int, str], mesh: Mesh) -> None:
        self.mesh = mesh
        self.missing: set[int] = set()
        self._digests = digests
        self._models: dict[int, _AxisLine] = {}
        self._names = sorted(set(digests.values()))
        self._number = {name: i for i, name in enumerate(self._names)}

    def representatives(self, numbers: np.ndarray, lowest: dict[str, int]) -> list[int]:
        return np.array([lowest[name] for name in self._names], np.int64)[numbers].tolist()

    def block(self, first: int, n_axes: int) -> tuple[np.ndarray, bool]:
        """Return the digest numbers of the ranks from `first` on that fill the innermost `n_axes` axes.

        Also return whether they are known; if not, they are a guess.
        """
        if n_axes == 0:
            return np.array([self._number[self._digests[first]]]), True
        axis = self.mesh.axes[n_axes - 1]
        line = _AxisLine(first, axis.stride, axis.size, self._digests)
        model = self._models.setdefault(n_axes, line)  # rank 0 comes first
        if model is line:
            line.explore(axis.anchors)
        elif not model.missing:
            line.explore(axis.anchors, model)
        else:
            return np.full(axis.stride * axis.size, self._number[self._digests[first]]), False
        self.missing |= line.missing
        classes, is_known = line.classes(), not line.missing
        inner: dict[str, np.ndarray] = {}
        for name in dict.fromkeys(classes):
            position = line.example(name, classes)
            if line.is_sure(position):
                inner[name], is_sure = self.block(first + position * axis.stride, n_axes - 1)
                is_known = is_known and is_sure
            else:  # the example may still change, so simulating inside this one could be wasted
                inner[name] = np.full(axis.stride, self._number[name])
        if is_known and n_axes > 1:
            return self._with_ends(line, classes, inner, n_axes)
        return np.concatenate([inner[name] for name in classes]), is_known

    def _with_ends(
        self, line: _AxisLine, classes: list[str], inner: dict[str, np.ndarray], n_axes: int
    ) -> tuple[np.ndarray, bool]:
        """Also check the last rank inside the first and the last position of every run."""
        axis = self.mesh.axes[n_axes - 1]
        ends = _AxisLine(line.first + axis.stride - 1, axis.stride, axis.size, self._digests)
        expected = {name: self._names[numbers[-1]] for name, numbers in inner.items()}
        found = [end for run in line.runs() for end in ends.run(*run, expected[classes[run[0]]])]
        self.missing |= ends.missing
        blocks = {(name, expected[name]): numbers for name, numbers in inner.items()}
        is_known = not ends.missing
        for position, key in enumerate(zip(classes, found, strict=True)):
            if key in blocks:
                continue
            first, is_sure = line.first + position * axis.stride, False
            blocks[key] = inner[key[0]]
            if not ends.missing and first in self._digests:
                blocks[key], is_sure = self.block(first, n_axes - 1)
            elif not ends.missing:  # only its last rank is known so far
                self.missing.add(first)
            is_known = is_known and is_sure
        return np.concatenate([blocks[key] for key in zip(classes, found, strict=True)]), is_known


class _AxisLine:
    """The positions of one axis, all else fixed, as far as they are known."""

    def __init__(self, first: int, stride: int, size: int, digests: dict[int, str]) -> None:
        self.missing: set[int] = set()  # ranks
        self.first, self._stride, self._size = first, stride, size
        ranks = range(first, first + size * stride, stride)
        self._known = {(r - first) // stride: digests[r] for r in digests if r in ranks}

    def explore(self, anchors: tuple[int, ...], model: _AxisLine | None = None) -> None:
        """Collect the ranks that are missing to know the class of every position."""
        last = self._size - 1
        spine = {0, last, *anchors}
        # Without a model the middle is needed whatever the ends turn out to be.
        if not self._have(spine if model else spine | {last // 2}):
            return
        runs = model.runs() if model and model.has_equal_ends == self.has_equal_ends else []
        runs = runs if len(runs) <= _MOST_RUNS else []
        spine |= {position for run in runs for position in run}
        if not self._have(spine):
            return
        is_as_model = bool(runs) and all(self._different(low, high) is None for low, high in runs)
        if not is_as_model and not self.has_equal_ends:
            spine |= {
                min(1, last),
                max(last - 1, 0),
            }  # the first rank logs, the last gets the uneven remainder
            if not self._have(spine):
                return
        for low, high in pairwise(sorted(spine)):
            if not (is_as_model and self._different(low, high) is None):
                self._search(low, high)

    @property
    def has_equal_ends(self) -> bool:
        return self._known[0] == self._known[self._size - 1]

    def runs(self) -> list[tuple[int, int]]:
        """First and last position of each run of equals."""
        classes = self.classes()
        starts = [p for p in range(self._size) if p == 0 or classes[p] != classes[p - 1]]
        return [(low, high - 1) for low, high in pairwise([*starts, self._size])]

    def run(self, low: int, high: int, expected: str) -> list[str]:
        """The digests from `low` to `high`; assumed to be as expected if both ends are."""
        if not self._have({low, high}):
            return [expected] * (high + 1 - low)
        if {self._known[p] for p in self._known if low <= p <= high} == {expected}:
            return [expected] * (high + 1 - low)
        spine = {low, max(high - 1, low), high}
        if self._have(spine):
            for start, end in pairwise(sorted(spine)):
                self._search(start, end)
        return self._filled(low, high)

    def classes(self) -> list[str]:
        """The digest of every position; an unknown one is assumed to equal the known one before it."""
        return self._filled(0, self._size - 1)

    def example(self, name: str, classes: list[str]) -> int:
        """The position whose inner ranks are simulated for a class: an end if possible, since ends are known first."""
        for position in (0, self._size - 1):
            if classes[position] == name:
                return position
        return classes.index(name)

    def is_sure(self, position: int) -> bool:
        """Whether this stays the example of its class whatever else becomes known."""
        if position == 0:
            return True
        return self._size - 1 in self._known if position == self._size - 1 else not self.missing

    def _search(self, low: int, high: int) -> None:
        if high - low < 2:
            return
        middle = (low + high) // 2
        if not self._have({middle}):
            return
        if self._known[low] == self._known[middle] == self._known[high]:
            # A rank that was not requested may be known: one that differs proves that this is no run of equals.
            different = self._different(low, high)
            if different is None:
                return
            middle = different
        self._search(low, middle)
        self._search(middle, high)

    def _different(self, low: int, high: int) -> int | None:
        """A known position, after `low` and not after `high`, that differs from `low`."""
        here = self._known[low]
        return next((p for p in sorted(self._known) if low < p <= high and self._known[p] != here), None)

    def _filled(self, low: int, high: int) -> list[str]:
        names = [self._known[low]]
        for position in range(low + 1, high + 1):
            names.append(self._known.get(position, names[-1]))
        return names

    def _have(self, positions: set[int]) -> bool:
        unknown = positions - self._known.keys()
        self.missing |= {self.first + position * self._stride for position in unknown}
        return not unknown
