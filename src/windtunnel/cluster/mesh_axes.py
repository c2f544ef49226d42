"""The axes of the parallel strategy, with the names people use for them.

    groups of one rank, and what the program calls them ──> axes of its mesh ──> MeshAxis: tp of 8, dp of 16, pp of 8

A group that lies on one axis, and is called after one, names it. Names of several axes at once
("tensor and data parallel") say less, and are believed only where nothing better is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from windtunnel.cluster.axes import axis_label
from windtunnel.cluster.mesh import Mesh, mesh_of

__all__ = ["MeshAxis", "mesh_axes"]

# Of two names that are equally likely the first counts: a library names the narrow axis after the wide one more
# often than the other way round (data parallel "with cp" is all of cp where there is one replica).
_AXES = ("tp", "pp", "cp", "fsdp", "ep", "dp")
_LESS = ("mp", "embedding")
_WORDS = {
    "tensor": "tp", "tp": "tp", "pipeline": "pp", "pp": "pp", "context": "cp", "cp": "cp", "data": "dp",
    "dp": "dp", "shard": "fsdp", "fsdp": "fsdp",
}  # fmt: skip
_MESH_NAME = re.compile(r"mesh_(?!default$|dim_\d+$)(\w{1,16})")


@dataclass(frozen=True, slots=True)
class MeshAxis:
    name: str  # "tp"; "axis of 4" if nobody says what it is for
    size: int
    stride: int  # ranks from one position to the next


def mesh_axes(groups: Iterable[tuple[str, tuple[int, ...]]], world_size: int) -> tuple[MeshAxis, ...]:
    """The axes, outermost first, of a program one of whose ranks is in these groups: (name, ranks).

    Groups that no mesh explains give one axis "rank"; one rank alone has none. No two axes share a name.
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


def _names(mesh: Mesh, groups: list[tuple[str, tuple[int, ...]]]) -> dict[int, str]:
    """The best claim first; an axis has one name, and a name one axis."""
    claims = sorted(claim for name, ranks in groups for claim in _claims(mesh, name, ranks))
    names: dict[int, str] = {}
    for _, _, axis, name in claims:
        if axis not in names and name not in names.values():
            names[axis] = name
    return names


def _claims(mesh: Mesh, name: str, ranks: tuple[int, ...]) -> Iterator[tuple[int, int, int, str]]:
    """(how weak, place among equally weak, axis, name) for each axis that the group fills."""
    digits = mesh.digits(ranks)
    varying = np.flatnonzero((digits != digits[:1]).any(axis=0)).tolist()
    label, is_plain = _label(name, ranks)
    if label is None:
        return
    order = (*_AXES, *_LESS).index(label) if label in _AXES + _LESS else len(_AXES)
    for axis in varying:
        if len(np.unique(digits[:, axis])) == mesh.axes[axis].size:
            weakness = 0 if len(varying) == 1 and is_plain else 1 if len(varying) == 1 else 2
            if weakness < 2 or label in _AXES:
                yield weakness, order, axis, label


def _label(name: str, ranks: tuple[int, ...]) -> tuple[str | None, bool]:
    """What the group is called after, and whether it is called after that alone."""
    text = name.lower()
    # The experts' own data or tensor parallel group lies on an axis of that kind, not on the experts'.
    without = text.replace("expert", "")
    text = without if any(word in without for word in ("tensor", "data", "pipelin", "context")) else text
    words = [part for part in re.split(r"[^a-z]+", text) if part]
    meant = {_WORDS[word] for word in words if word in _WORDS}
    if "fsdp" in meant:
        meant -= {"dp"}  # dp_shard
    label = axis_label(text, ranks)
    if label in _AXES + _LESS:
        return label, len(meant) < 2 and "and" not in words
    own = _MESH_NAME.fullmatch(name)
    return (own[1] if own and label != "world" else None), True
