"""The axes of a device mesh, read off the process groups of one rank.

    groups [0,1] [0,2,4,6] [0,8] ──> cuts 1 2 8 16 ──> axes of 2, 4 and 2 ranks ──> digits of every rank

A program makes its groups from a mesh: the members of a group are steps along one axis, or along several. The cuts
are where these steps begin and end; a chain of cuts that divide one another gives the axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

__all__ = ["Axis", "Mesh", "mesh_of", "pattern_of"]

_MOST_ANCHORS = 8  # members used of a group that covers only part of an axis
_MOST_GROUPS = 16  # of such groups


@dataclass(frozen=True, slots=True)
class Axis:
    """Positions 0 to size-1, `stride` ranks apart."""

    stride: int
    size: int
    anchors: tuple[int, ...] = ()  # positions that some group singles out


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axes from the innermost to the outermost; their sizes multiply to the world's."""

    axes: tuple[Axis, ...]
    n_overlooked: int = 0  # positions that a group singles out but that are not anchors: there were too many

    def digits(self, ranks: Sequence[int] | np.ndarray) -> np.ndarray:
        """Positions of each rank: a row per rank, a column per axis."""
        column = np.asarray(ranks, np.int64)[:, None]
        strides, sizes = (np.array([getattr(a, f) for a in self.axes], np.int64) for f in ("stride", "size"))
        return column // strides % sizes


def mesh_of(groups: Iterable[tuple[int, ...]], world_size: int) -> Mesh:
    """Return the mesh that explains one rank's groups.

    Groups that no single mesh explains (cuts of 2 and of 3 ranks side by side, irregularly spaced members) give one
    axis over the whole world. Every group then gives anchors: positions that must be simulated because nothing is
    known about how they repeat. This costs more simulations, but nothing better is possible.
    """
    groups = [group for group in dict.fromkeys(groups) if len(group) > 1]
    cuts = {1, world_size}
    for group in groups:
        cuts |= {cut for cut in _cuts(group) if world_size % cut == 0}
    chain = sorted(cuts)
    mesh = _mesh(chain)
    is_chain = all(larger % smaller == 0 for smaller, larger in pairwise(chain))
    if not is_chain or not all(_is_product(mesh.digits(group)) for group in groups):
        mesh = _mesh(sorted({1, world_size}))
    partial = [_partial(axis, i, mesh, groups) for i, axis in enumerate(mesh.axes)]
    axes = tuple(map(_anchored, mesh.axes, partial))
    singled_out = [set().union(*map(np.ndarray.tolist, positions)) for positions in partial]
    return Mesh(axes, sum(len(all - set(axis.anchors)) for all, axis in zip(singled_out, axes, strict=True)))


def pattern_of(group: tuple[int, ...], mesh: Mesh) -> tuple[tuple[int, ...], bytes]:
    """Return the shape of a group in the mesh: its members' positions on the axes along which they differ.

    It does not depend on where the group is: the tensor-parallel groups of two stages have the same pattern.
    """
    digits = mesh.digits(group)
    axes = np.flatnonzero((digits != digits[:1]).any(axis=0))
    return tuple(axes.tolist()), digits[:, axes].tobytes()


def _mesh(chain: list[int]) -> Mesh:
    return Mesh(tuple(Axis(low, high // low) for low, high in pairwise(chain)))


def _cuts(group: tuple[int, ...]) -> set[int]:
    """Where the steps of a group begin and end: [0, 1, 8, 9] goes by 1 up to 2, then by 8 up to 16."""
    starts = np.sort(np.asarray(group, np.int64))
    starts = starts - starts[0]
    cuts: set[int] = set()
    while len(starts) > 1:
        stride = int(starts[1])
        expected = np.arange(len(starts)) * stride
        count = int(np.argmax(starts != expected)) or len(starts)
        cuts |= {stride, stride * count}
        if len(starts) % count:
            break
        starts = starts.reshape(-1, count)[:, 0]
    return cuts


def _is_product(digits: np.ndarray) -> bool:
    """Whether members are all combinations of some positions on each axis."""
    return prod(len(np.unique(column)) for column in digits.T) == len(digits)


def _partial(axis: Axis, i: int, mesh: Mesh, groups: list[tuple[int, ...]]) -> list[np.ndarray]:
    """The positions of every group that covers only part of an axis."""
    positions = (np.unique(mesh.digits(group)[:, i]) for group in groups)
    return [each for each in positions if 1 < len(each) < axis.size]


def _anchored(axis: Axis, partial: list[np.ndarray]) -> Axis:
    found: set[int] = set()
    for positions in partial[:_MOST_GROUPS]:
        few = np.linspace(0, len(positions) - 1, min(len(positions), _MOST_ANCHORS)).astype(int)
        found |= set(positions[few].tolist())
    return Axis(axis.stride, axis.size, tuple(sorted(found)))
