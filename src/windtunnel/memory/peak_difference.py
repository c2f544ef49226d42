"""Compare what two peaks hold: by module and by kind of tensor.

    shares of A, shares of B ──> Change, one per module and role, largest change first

Layers are folded over both sides at once, so that 28 layers and 32 layers share one row. Every byte of either side is
in exactly one row: the differences add up to the difference of the peaks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from windtunnel.memory.attribution import LiveTensors, ModuleShare, RoleBytes, fold_paths

__all__ = ["Change", "TensorChange", "module_changes", "role_changes", "tensor_changes"]


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes of one module and role on both sides."""

    module: str
    role: str
    a_bytes: int
    b_bytes: int

    @property
    def difference(self) -> int:
        return self.b_bytes - self.a_bytes


@dataclass(frozen=True, slots=True)
class TensorChange:
    """Tensors of one origin on both sides; None: not among the largest of that side."""

    name: str
    op: str
    module: str
    role: str
    where: str
    a_bytes: int | None
    b_bytes: int | None
    a_shape: str
    b_shape: str
    a_count: int
    b_count: int

    @property
    def difference(self) -> int | None:
        return None if self.a_bytes is None or self.b_bytes is None else self.b_bytes - self.a_bytes


def role_changes(a: RoleBytes, b: RoleBytes) -> tuple[Change, ...]:
    """In the order of the roles; the module is empty."""
    return tuple(
        Change("", role, before, after)
        for (role, before), (_, after) in zip(a.items(), b.items(), strict=True)
    )


def module_changes(a: Sequence[ModuleShare], b: Sequence[ModuleShare]) -> tuple[Change, ...]:
    """Largest change first."""
    folded = fold_paths({share.module for share in (*a, *b)})
    totals: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for side, shares in enumerate((a, b)):
        for share in shares:
            totals[folded[share.module], share.role][side] += share.n_bytes
    changes = [Change(module, role, *both) for (module, role), both in totals.items()]
    return tuple(sorted(changes, key=lambda c: (-abs(c.difference), -c.a_bytes, c.module, c.role)))


def tensor_changes(a: Sequence[LiveTensors], b: Sequence[LiveTensors]) -> tuple[TensorChange, ...]:
    """Tensors made by the same operator at the same line for the same module, whatever their shapes."""
    sides: list[defaultdict[tuple[str, ...], list[LiveTensors]]] = []
    for tensors in (a, b):
        found: defaultdict[tuple[str, ...], list[LiveTensors]] = defaultdict(list)
        for each in tensors:
            found[_origin(each)].append(each)
        sides.append(found)
    changes = []
    for key in dict.fromkeys((*sides[0], *sides[1])):
        left, right = sides[0].get(key, []), sides[1].get(key, [])
        name, op, module, role, where = key
        changes.append(
            TensorChange(
                name, op, module, role, where, _sum(left), _sum(right), _shapes(left), _shapes(right),
                sum(each.count for each in left), sum(each.count for each in right),
            )
        )  # fmt: skip
    return tuple(sorted(changes, key=lambda c: -abs((c.b_bytes or 0) - (c.a_bytes or 0))))


def _origin(tensors: LiveTensors) -> tuple[str, ...]:
    return tensors.name, tensors.op, tensors.module, tensors.role, tensors.where


def _sum(tensors: Sequence[LiveTensors]) -> int | None:
    return sum(each.n_bytes for each in tensors) if tensors else None


def _shapes(tensors: Iterable[LiveTensors]) -> str:
    texts = (f"{'x'.join(map(str, each.shape))} {each.dtype}" for each in tensors if each.shape is not None)
    return ", ".join(dict.fromkeys(texts))
