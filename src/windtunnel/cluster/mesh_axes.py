"""The axes of the parallel strategy, under their usual names.

    groups of one rank, with the names the program gave them ──> mesh ──> MeshAxis: tp of 8, dp of 16, pp of 8
    "TENSOR_MODEL_PARALLEL_GROUP", (0, 1, 2, 3) ──> axis_label ──> "tp"; no name ──> "8 ranks, 64 apart"

A group that lies on one axis and is named after one axis names that axis. A name of several axes at once
("tensor and data parallel") says less, and is used only if nothing better is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from windtunnel.cluster.mesh import Mesh, mesh_of

__all__ = ["MeshAxis", "axis_label", "mesh_axes"]

# A word in the name of a group -> the axis. The first match counts.
_AXIS_OF_WORD = {
    "expert": "ep", "context": "cp", "tensor": "tp", "pipeline": "pp", "embedding": "embedding", "pipelin": "pp",
    "data": "dp", "default_pg": "world", "model_parallel": "mp", "shard": "fsdp", "replicate": "dp", "fsdp": "fsdp",
}  # fmt: skip
_SHORT_NAMES = ("tp", "pp", "dp", "cp", "ep", "mp", "world")

# Of two equally likely names the first one wins: a library is more likely to name a narrow axis after the wide one
# than the other way round (data parallel "with cp" is all of cp if there is one replica).
_AXES = ("tp", "pp", "cp", "fsdp", "ep", "dp")
_SECONDARY = ("mp", "embedding")
_MESH_NAME = re.compile(r"mesh_(?!default$|dim_\d+$)(\w{1,16})")


@dataclass(frozen=True, slots=True)
class MeshAxis:
    name: str  # "tp"; "axis of 4" if no group names it
    size: int
    stride: int  # ranks from one position to the next


def mesh_axes(groups: Iterable[tuple[str, tuple[int, ...]]], world_size: int) -> tuple[MeshAxis, ...]:
    """Return the axes, outermost first, given the (name, ranks) of every group that one rank is in.

    Groups that no mesh explains give one axis "rank"; a world of one rank has no axis. Names are unique.
    """
    groups = [(name, ranks) for name, ranks in dict.fromkeys(groups) if len(ranks) > 1]
    mesh = mesh_of([ranks for _, ranks in groups], world_size)
    names = _names(mesh, groups)
    if len(mesh.axes) == 1:
        names.setdefault(0, "rank")
    for i, axis in enumerate(mesh.axes):
        plain = f"axis of {axis.size}"
        names.setdefault(i, plain if plain not in names.values() else f"{plain}, {axis.stride} apart")
    found = [MeshAxis(names[i], axis.size, axis.stride) for i, axis in enumerate(mesh.axes)]
    return tuple(reversed(found))


def axis_label(name: str, ranks: tuple[int, ...]) -> str:
    """Label a group by the axis in its name, or else by the spacing of its ranks."""
    text = name.lower()
    for word, axis in _AXIS_OF_WORD.items():
        if word in text:
            return axis
    for part in re.split(r"[^a-z]+", text):
        if part in _SHORT_NAMES:
            return part
    strides = {b - a for a, b in pairwise(ranks)}
    apart = f", {strides.pop()} apart" if len(strides) == 1 else ""
    return f"{len(ranks)} ranks{apart}"


def _names(mesh: Mesh, groups: list[tuple[str, tuple[int, ...]]]) -> dict[int, str]:
    """Take the strongest candidate first; an axis gets one name, and a name goes to one axis."""
    candidates = sorted(found for name, ranks in groups for found in _candidates(mesh, name, ranks))
    names: dict[int, str] = {}
    for _, _, axis, name in candidates:
        if axis not in names and name not in names.values():
            names[axis] = name
    return names


def _candidates(mesh: Mesh, name: str, ranks: tuple[int, ...]) -> Iterator[tuple[int, int, int, str]]:
    """Yield (weakness, order among equally weak ones, axis, name) for each axis that the group fills."""
    digits = mesh.digits(ranks)
    varying = np.flatnonzero((digits != digits[:1]).any(axis=0)).tolist()
    label, is_plain = _label(name, ranks)
    if label is None:
        return
    order = (*_AXES, *_SECONDARY).index(label) if label in _AXES + _SECONDARY else len(_AXES)
    for axis in varying:
        if len(np.unique(digits[:, axis])) == mesh.axes[axis].size:
            weakness = 0 if len(varying) == 1 and is_plain else 1 if len(varying) == 1 else 2
            if weakness < 2 or label in _AXES:
                yield weakness, order, axis, label


def _label(name: str, ranks: tuple[int, ...]) -> tuple[str | None, bool]:
    """Return the axis in the name of a group, and whether the name has no other."""
    text = name.lower()
    # The experts' own data or tensor parallel group lies on an axis of that kind, not on the expert axis.
    without = text.replace("expert", "")
    text = without if any(word in without for word in ("tensor", "data", "pipelin", "context")) else text
    words = [part for part in re.split(r"[^a-z]+", text) if part]
    named = {_AXIS_OF_WORD.get(word, word) for word in words} & {"tp", "pp", "cp", "dp", "fsdp"}
    if "fsdp" in named:
        named -= {"dp"}  # dp_shard
    label = axis_label(text, ranks)
    if label in _AXES + _SECONDARY:
        return label, len(named) < 2 and "and" not in words
    own = _MESH_NAME.fullmatch(name)
    return (own[1] if own and label != "world" else None), True
