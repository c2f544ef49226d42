"""Find the ranks that do the same work, simulating as few of them as possible.

    RankTalk of rank 0 ──> mesh axes ──> positions to look at ──> RankTalk of each ──> every rank's representative

The outermost axis is sorted into classes first, then the next one once in each class, and so on inwards: what is
uneven only on the last stage is found there. Along an axis, two positions that do the same with one between them
that does it too are taken for a run of equals; where positions differ, the boundary is searched by halving. The
line through rank 0 is the model for all others along the same axis: where its runs begin and end they look first,
and a run of the model whose ends are equal on another line is a run there too. At the ends of a run the last rank
within is looked at as well as the first: it is where an uneven rest is, of whatever is divided over several axes.
The cost does not depend on how long an axis is, but for the halving.

Ranks do the same if they allocate, free and call the same, in the same order. With a flat sharded optimizer no two
ranks do: its pieces of equal size are cut at other tensors on each. So once several ranks have turned out to differ
although their model and calls are the same and their peaks are within a millionth, such ranks count as equal.

What to look at next is computed anew from what is known, so the order in which ranks are learned does not matter.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from windtunnel.cluster.mesh import Mesh, mesh_of
from windtunnel.cluster.talk import RankTalk

__all__ = ["RankClasses"]

_FAILED = "failed"  # no digest looks like this
_MOST_RUNS = 8  # of a model worth following
_CRUMBS = 1e-6  # of the peak, and 1 KiB: what a sharded optimizer's pieces differ by from rank to rank
_MANY_PIECES = 3  # classes that differ only in crumbs: fewer may be an uneven rest, worth its own class
_SMALL_WORLD = 8  # ranks, one machine's: every one is looked at, since a mistake may be in any


class RankClasses:
    """Which ranks to simulate, and which of them stands for each rank of the world."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._talks: dict[int, RankTalk | None] = {}

    def wanted(self) -> tuple[int, ...]:
        """Ranks to simulate next, all at once if you can; none when every class is known."""
        if 0 not in self._talks:
            return (0,)
        if self._world_size <= _SMALL_WORLD:
            return tuple(rank for rank in range(self._world_size) if rank not in self._talks)
        survey = _Survey(self._classes(), self._mesh())
        survey.block(0, len(survey.mesh.axes))
        return tuple(sorted(survey.missing))

    @property
    def n_overlooked(self) -> int:
        """Positions in the mesh that a group singles out and that were not looked at for it: there were too many."""
        return self._mesh().n_overlooked

    def learn(self, talk: RankTalk | None, rank: int) -> None:
        """Take in a simulated rank, asked for or not. None: it failed, and is in no class with one that did not."""
        self._talks[rank] = talk

    def representatives(self) -> dict[int, int]:
        """Every rank of the world, and the simulated rank that stands for it: the lowest of its class.

        A rank that failed stands for itself, and for those that would do the same. Before every class is known
        this is the best guess.
        """
        if 0 not in self._talks:
            raise ValueError("rank 0 has not been simulated, so nothing is known of the other ranks")
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
        known = (talk for _, talk in sorted(self._talks.items()) if talk is not None)
        first = next(known, None)
        return mesh_of(first.groups if first is not None else (), self._world_size)

    def _classes(self) -> dict[int, str]:
        """The class of every simulated rank: its digest, or that of the first rank that differs only in crumbs."""
        exact = {rank: _FAILED if talk is None else talk.digest for rank, talk in self._talks.items()}
        kin: dict[str, list[RankTalk]] = {}
        rough = dict(exact)
        for rank, talk in sorted(self._talks.items()):
            if talk is None or not talk.rough_digest:
                continue
            known = kin.setdefault(talk.rough_digest, [])
            like = next((k for k in known if _differ_in_crumbs(talk, k)), None)
            if like is None:
                known.append(talk)
            else:
                rough[rank] = like.digest
        n_pieces = len(set(exact.values())) - len(set(rough.values()))
        return rough if n_pieces >= _MANY_PIECES else exact


def _differ_in_crumbs(talk: RankTalk, other: RankTalk) -> bool:
    return abs(talk.peak_bytes - other.peak_bytes) <= max(_CRUMBS * other.peak_bytes, 1 << 10)


class _Survey:
    """One look at what is known: the class of every rank, and the ranks still missing to be sure of it."""

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
        """Numbers of the digests of the ranks that begin at `first` and fill the innermost `n_axes` axes.

        Also whether they are known; if not they are a guess.
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
            else:  # the example may still change, and looking into this one be in vain
                inner[name] = np.full(axis.stride, self._number[name])
        if is_known and n_axes > 1:
            return self._with_ends(line, classes, inner, n_axes)
        return np.concatenate([inner[name] for name in classes]), is_known

    def _with_ends(
        self, line: _AxisLine, classes: list[str], inner: dict[str, np.ndarray], n_axes: int
    ) -> tuple[np.ndarray, bool]:
        """Look at the last rank within the first and the last position of every run, too."""
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
        """Note what is missing to know the class of every position."""
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
        is_as_model = bool(runs) and all(self._stranger(low, high) is None for low, high in runs)
        if not is_as_model and not self.has_equal_ends:
            spine |= {min(1, last), max(last - 1, 0)}  # the first logs, the last gets the uneven rest
            if not self._have(spine):
                return
        for low, high in pairwise(sorted(spine)):
            if not (is_as_model and self._stranger(low, high) is None):
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
        """The digests from `low` to `high`; they are taken to be as expected if both ends are."""
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
        """The digest of every position; one that is not known is taken to be as the known one before it."""
        return self._filled(0, self._size - 1)

    def example(self, name: str, classes: list[str]) -> int:
        """The position at which a class is looked into: an end if it can be, for the ends are known first."""
        for position in (0, self._size - 1):
            if classes[position] == name:
                return position
        return classes.index(name)

    def is_sure(self, position: int) -> bool:
        """Whether this will be the example of its class whatever else is learned."""
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
            # Ranks nobody asked for may be known: one that differs proves that this is no run of equals.
            stranger = self._stranger(low, high)
            if stranger is None:
                return
            middle = stranger
        self._search(low, middle)
        self._search(middle, high)

    def _stranger(self, low: int, high: int) -> int | None:
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
