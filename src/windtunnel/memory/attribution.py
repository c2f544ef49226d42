"""What holds the memory at one moment: by role, by module, by tensor.

    Lifetimes + bytes held by each ──> RoleBytes, ModuleShare (a tree, foldable), LiveTensors (largest first)

Every byte is counted once, at the size the allocator gave it, so all three views add up to the same total.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from windtunnel.events.model import Recording, Role
from windtunnel.memory.lifetime import Lifetimes

__all__ = [
    "ROLES", "ROLE_NAMES", "LiveTensors", "ModuleShare", "RoleBytes", "fold_layers", "fold_paths",
    "largest_tensors", "module_path", "module_shares", "output_slots", "role_bytes", "short_op", "to_depth",
    "user_line",
]  # fmt: skip

# name, op, module, role, shape, dtype, where: two tensors with the same one are grouped
_Description = tuple[str, str, str, str, tuple[int, ...] | None, str, str]
_PARAMETER_ROLES = (Role.WEIGHT, Role.FROZEN, Role.GRADIENT, Role.OPTIMIZER)


@dataclass(frozen=True, slots=True)
class RoleBytes:
    """Bytes by what they are for."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    inputs: int = 0
    temporary: int = 0
    workspace: int = 0
    communication: int = 0
    frozen: int = 0  # weights that need no gradient
    copies: int = 0  # of weights

    @property
    def states(self) -> int:
        """What lives as long as the model: what sharding divides."""
        return self.weights + self.frozen + self.gradients + self.optimizer

    def total(self) -> int:
        return sum(n_bytes for _, n_bytes in self.items())

    def items(self) -> list[tuple[str, int]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


# In the order of RoleBytes' fields.
ROLES = (
    Role.WEIGHT, Role.GRADIENT, Role.OPTIMIZER, Role.ACTIVATION, Role.INPUT, Role.TEMPORARY, Role.WORKSPACE,
    Role.COMMUNICATION, Role.FROZEN, Role.COPY,
)  # fmt: skip
ROLE_NAMES = {role: field.name for role, field in zip(ROLES, fields(RoleBytes), strict=True)}


@dataclass(frozen=True, slots=True)
class ModuleShare:
    """What one module path holds for one role, its children not included."""

    module: str
    role: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class LiveTensors:
    """Tensors that differ only in their layer number: `layers.0-27.mlp`."""

    name: str  # of a weight, its gradient or its optimizer state; empty for others
    op: str
    module: str
    role: str
    shape: tuple[int, ...] | None
    dtype: str
    where: str  # "train.py:41"
    count: int
    n_bytes: int  # of all of them


def role_bytes(roles: np.ndarray, held: np.ndarray) -> RoleBytes:
    """Sum held bytes by role."""
    totals = [int(held[roles == role].sum()) for role in ROLES]
    return RoleBytes(*totals)


def module_shares(
    recording: Recording, lives: Lifetimes, alive: np.ndarray, held: np.ndarray
) -> tuple[ModuleShare, ...]:
    """Sum the bytes of the live allocations (indices into `lives`) by module path and role, largest first."""
    totals: defaultdict[tuple[str, str], int] = defaultdict(int)
    keys = np.stack([lives.module[alive], lives.name[alive], lives.role[alive]], axis=1).astype(np.int64)
    distinct, group = np.unique(keys, axis=0, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, group.reshape(-1), held)
    for (module, name, role), n_bytes in zip(distinct.tolist(), sums.tolist(), strict=True):
        totals[module_path(recording, module, name, role), ROLE_NAMES[Role(role)]] += n_bytes
    return _largest_first(totals)


def to_depth(shares: Iterable[ModuleShare], depth: int) -> tuple[ModuleShare, ...]:
    """Add what lies deeper to the ancestor with `depth` path components."""
    totals: defaultdict[tuple[str, str], int] = defaultdict(int)
    for share in shares:
        totals[".".join(share.module.split(".")[:depth]), share.role] += share.n_bytes
    return _largest_first(totals)


def fold_layers(shares: Iterable[ModuleShare]) -> tuple[ModuleShare, ...]:
    """Add up siblings that differ only by index: `layers.0.mlp` … `layers.27.mlp` -> `layers.0-27.mlp`."""
    shares = list(shares)
    folded = fold_paths({share.module for share in shares})
    totals: defaultdict[tuple[str, str], int] = defaultdict(int)
    for share in shares:
        totals[folded[share.module], share.role] += share.n_bytes
    return _largest_first(totals)


def largest_tensors(
    recording: Recording, lives: Lifetimes, alive: np.ndarray, held: np.ndarray, top: int = 20
) -> tuple[LiveTensors, ...]:
    """Return the largest groups of equal tensors among the live ones."""
    members: defaultdict[_Description, list[int]] = defaultdict(list)
    slots = output_slots(recording, lives, alive)
    described = [
        _describe(recording, lives, i, slot) for i, slot in zip(alive.tolist(), slots.tolist(), strict=True)
    ]
    modules = fold_paths({d[2] for d in described})
    names = fold_paths({d[0] for d in described})
    for (name, op, module, *rest), n_bytes in zip(described, held.tolist(), strict=True):
        members[(names[name], op, modules[module], *rest)].append(n_bytes)  # type: ignore[index]
    groups = [LiveTensors(*key, count=len(sizes), n_bytes=sum(sizes)) for key, sizes in members.items()]
    return tuple(sorted(groups, key=lambda g: (-g.n_bytes, g.module, g.op))[:top])


def short_op(name: str) -> str:
    """`aten.mm.default` -> `aten.mm`: readers of a report do not need the overload."""
    parts = name.split(".")
    return ".".join(parts[:2]) if len(parts) == 3 else name


def user_line(recording: Recording, frame: int) -> str:
    """`train.py:41`: the innermost line that is not a library's."""
    stack = recording.stack(frame)
    if not stack:
        return ""
    own = [f for f in stack if "site-packages" not in f.file and not f.file.startswith("<")]
    innermost = (own or stack)[-1]
    file = innermost.file.replace("\\", "/").rpartition("/")[2]
    return f"{file}:{innermost.line}"


def module_path(recording: Recording, module: int, name: int, role: int) -> str:
    """The module that bytes are attributed to; the numbers are those of `Lifetimes`."""
    # A weight is allocated wherever the model was built; its name shows where it belongs.
    if role in _PARAMETER_ROLES and name >= 0:
        return recording.name(name).rpartition(".")[0]
    return recording.name(module)


def output_slots(recording: Recording, lives: Lifetimes, chosen: np.ndarray) -> np.ndarray:
    """For each chosen allocation, the index of the operator's output that it holds (which has its shape), or -1."""
    offsets, ids = recording.outputs
    rows = lives.op_row[chosen].astype(np.int64)
    slots = np.full(len(chosen), -1)
    if len(ids) == 0 or len(chosen) == 0:
        return slots
    # One number for (row, storage), so that a single search finds the first result with that storage.
    span = int(max(ids.max(), lives.storage.max())) + 2
    n_results = np.diff(offsets)
    keys = np.repeat(np.arange(len(n_results)), n_results) * span + ids + 1
    order = np.argsort(keys, kind="stable")
    wanted = rows * span + lives.storage[chosen] + 1
    found = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    n_specs = np.array([len(signature.outputs) for signature in recording.signatures] or [0])
    is_told = n_specs[lives.signature[chosen]] == n_results[rows]
    is_mine = (rows >= 0) & is_told & (keys[found] == wanted)
    slots[is_mine] = (found - offsets[rows])[is_mine]
    return slots


def _describe(recording: Recording, lives: Lifetimes, i: int, slot: int) -> _Description:
    module, name, role = int(lives.module[i]), int(lives.name[i]), int(lives.role[i])
    signature = int(lives.signature[i])
    spec = recording.signatures[signature].outputs[slot] if slot >= 0 else None
    return (
        recording.name(name),
        short_op(recording.signatures[signature].name) if signature >= 0 else "",
        module_path(recording, module, name, role),
        ROLE_NAMES[Role(role)],
        spec.shape if spec is not None else None,
        spec.dtype if spec is not None else "",
        user_line(recording, int(lives.frame[i])),
    )


def fold_paths(paths: set[str]) -> dict[str, str]:
    """Each path -> the same path with the numbers of all its siblings in place of its own."""
    alike: defaultdict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for path in paths:
        parts = path.split(".")
        alike[tuple("#" if part.isdecimal() else part for part in parts)].append(parts)
    folded: dict[str, str] = {}
    for template, members in alike.items():
        columns = zip(template, zip(*members, strict=True), strict=True)
        text = ".".join(
            _ranges({int(n) for n in column}) if part == "#" else part for part, column in columns
        )
        folded |= {".".join(parts): text for parts in members}
    return folded


def _ranges(numbers: set[int]) -> str:
    """{0, 1, 2, 5} -> "0-2,5"."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _largest_first(totals: dict[tuple[str, str], int]) -> tuple[ModuleShare, ...]:
    shares = [ModuleShare(module, role, n_bytes) for (module, role), n_bytes in totals.items()]
    return tuple(sorted(shares, key=lambda s: (-s.n_bytes, s.module, s.role)))
