"""Which operators, kinds of operators and modules the time of a step goes to, and what it computes.

    recording, rows of one step, costs of its rows ──> StepProfile

Model flops leave out what is computed a second time (checkpointing); hardware flops do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from windtunnel.events.model import Kind, Phase, Recording, Role, Signature
from windtunnel.timing.operators.op_cost import Basis, OpCost
from windtunnel.timing.operators.operator_classes import base_name
from windtunnel.timing.row_costs import RowCosts

__all__ = ["OperatorTime", "StepProfile", "profile_of", "shapes_text", "tokens_of"]

_MOST_OPERATORS = 50
_LARGE_SPREAD = 0.25  # of the median, between the quartiles: a measurement that did not settle
_MOST_NAMED = 10
# Lookups of tokens: which input is the table, which the indices, and whether nothing else is ever looked up so.
_TABLES = {
    "embedding": (0, 1, True),
    "Embedding": (1, 0, True),
    "EmbeddingLookup": (0, 1, True),
    "Gather": (0, 1, False),
    "GatherV2": (0, 1, False),
    "IndexSelect": (0, 1, False),
}


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """All calls of an operator with the same tensors in one step."""

    op: str  # "aten.mm"
    op_class: str
    shapes: str  # "4096x4096 bf16, 4096x11008 bf16"
    count: int
    seconds: float
    tflops: float  # reached, in 1e12 operations per second
    gbs: float  # bytes moved per second, in 1e9
    basis: str


@dataclass(frozen=True)
class StepProfile:
    """One rank's step."""

    seconds: float  # of all kernels, whatever runs at the same time
    operators: tuple[OperatorTime, ...]  # longest first
    by_class: dict[str, float]  # longest first
    by_module: dict[str, float]  # module path -> seconds of its own operators
    by_phase: dict[str, float]
    model_flops: int
    hardware_flops: int
    n_kernels: int
    bounded: dict[str, int] = field(default_factory=dict)  # operators without a cost model -> how often
    bounded_seconds: float = 0.0
    unsettled: dict[str, float] = field(default_factory=dict)  # measured operators -> their spread


def profile_of(recording: Recording, rows: np.ndarray, costs: RowCosts, is_again: np.ndarray) -> StepProfile:
    """Add up the operators among `rows`; `is_again` says for every row of the recording whether it is a recomputation."""
    columns = recording.columns
    rows = rows[columns["kind"][rows] == Kind.OP]
    value, seconds, is_fused = columns["value"][rows], costs.seconds[rows], costs.is_fused[rows]
    flops = np.array([cost.flops for cost in costs.costs], np.float64)
    by_class: defaultdict[str, float] = defaultdict(float)
    by_class["fused"] = float(seconds[is_fused].sum())
    alone = _Totals(value[~is_fused], seconds[~is_fused], len(costs.costs))
    for i in alone.used:
        by_class[costs.costs[i].op_class or "other"] += float(alone.seconds[i])
    bounded = [i for i in alone.used if costs.costs[i].basis is Basis.BYTES]
    unsettled = [i for i in alone.used if costs.costs[i].spread > _LARGE_SPREAD]
    names = recording.names
    return StepProfile(
        seconds=float(seconds.sum()),
        operators=_operators(recording.signatures, alone, costs.costs, seconds[is_fused]),
        by_class=_longest_first({name: s for name, s in by_class.items() if s}),
        by_module=_longest_first(
            _sums(columns["module"][rows], seconds, lambda module: names[module] if module >= 0 else "")
        ),
        by_phase=_sums(columns["phase"][rows], seconds, lambda phase: Phase(phase).name.lower()),
        model_flops=int(flops[value[~is_again[rows]]].sum()),
        hardware_flops=int(flops[value].sum()),
        n_kernels=int((seconds > 0).sum()),
        bounded=_counted(recording.signatures, bounded, alone.counts),
        bounded_seconds=float(alone.seconds[bounded].sum()),
        unsettled=_worst(recording.signatures, unsettled, costs.costs, alone.seconds),
    )


class _Totals:
    """Calls and seconds of each signature."""

    def __init__(self, value: np.ndarray, seconds: np.ndarray, n: int) -> None:
        self.counts = np.bincount(value, minlength=n)
        self.seconds = np.bincount(value, weights=seconds, minlength=n)
        self.used: list[int] = np.flatnonzero(self.counts).tolist()


def tokens_of(recording: Recording, rows: np.ndarray, is_again: np.ndarray) -> int:
    """Tokens a rank looks up in its largest table in one step; 0 if it looks up none."""
    columns = recording.columns
    rows = rows[(columns["kind"][rows] == Kind.OP) & ~is_again[rows]]
    counts = np.bincount(columns["value"][rows], minlength=len(recording.signatures))
    found: defaultdict[tuple[bool, int], int] = defaultdict(int)
    for i in np.flatnonzero(counts).tolist():
        signature = recording.signatures[i]
        if (lookup := _TABLES.get(base_name(signature.name))) is None or len(signature.inputs) < 2:
            continue
        table_at, indices_at, is_certain = lookup
        table, indices = signature.inputs[table_at].shape, signature.inputs[indices_at].shape
        if not is_certain:  # a graph looks up tokens with what takes rows of anything: the table is a weight
            if (
                not signature.outputs
                or signature.outputs[0].shape != (*indices, *table[1:])
                or len(table) != 2
            ):
                continue
            is_certain = _reads_weight(recording, rows[columns["value"][rows] == i], table_at)
        found[is_certain, table[0]] += int(counts[i]) * int(np.prod(indices, dtype=np.int64))
    return found[max(found)] if found else 0


def _reads_weight(recording: Recording, rows: np.ndarray, input_at: int) -> bool:
    """Whether this input of one of the operators is a storage that is a weight, from its allocation or by a later mark."""
    columns = recording.columns
    offsets, storages = recording.inputs
    read = [
        int(storages[offsets[row] + input_at])
        for row in rows.tolist()
        if offsets[row] + input_at < offsets[row + 1]
    ]
    marks = np.isin(columns["kind"], (Kind.ALLOC, Kind.MARK)) & (columns["role"] == Role.WEIGHT)
    return bool(np.isin(read, columns["subject"][marks]).any())


def shapes_text(signature: Signature) -> str:
    """Shapes and types of the inputs, as people write them."""
    texts = [
        f"{'x'.join(map(str, s.shape)) or 'scalar'} {_SHORT.get(s.dtype, s.dtype)}"
        for s in signature.inputs[:3]
    ]
    if len(signature.inputs) > 3:
        texts.append(f"and {len(signature.inputs) - 3} more")
    return ", ".join(texts)


_SHORT = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
}


def _operators(
    signatures: Sequence[Signature], totals: _Totals, costs: Sequence[OpCost], fused: np.ndarray
) -> tuple[OperatorTime, ...]:
    groups: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for i in totals.used:
        if totals.seconds[i] > 0:
            groups[_short(signatures[i].name), shapes_text(signatures[i])].append(i)
    found = []
    for (op, shapes), members in groups.items():
        seconds = float(totals.seconds[members].sum())
        flops = sum(int(totals.counts[i]) * costs[i].flops for i in members)
        n_bytes = sum(int(totals.counts[i]) * costs[i].n_bytes for i in members)
        first = costs[members[0]]
        found.append(
            OperatorTime(
                op, first.op_class or "other", shapes, int(totals.counts[members].sum()), seconds, flops / seconds / 1e12,
                n_bytes / seconds / 1e9, first.basis.value,
            )
        )  # fmt: skip
    if len(fused):
        n_kernels = int((fused > 0).sum())
        found.append(
            OperatorTime(
                "(kernels of the compiler)", "fused", "", n_kernels, float(fused.sum()), 0.0, 0.0, "model"
            )
        )
    return tuple(sorted(found, key=lambda o: (-o.seconds, o.op, o.shapes))[:_MOST_OPERATORS])


def _counted(signatures: Sequence[Signature], which: list[int], counts: np.ndarray) -> dict[str, int]:
    found: defaultdict[str, int] = defaultdict(int)
    for i in which:
        found[_short(signatures[i].name)] += int(counts[i])
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _worst(
    signatures: Sequence[Signature], which: list[int], costs: Sequence[OpCost], total: np.ndarray
) -> dict[str, float]:
    by_time = sorted(which, key=lambda i: -total[i])[:_MOST_NAMED]
    return {f"{_short(signatures[i].name)} {shapes_text(signatures[i])}": costs[i].spread for i in by_time}


def _short(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2]) if len(parts) == 3 else name


def _sums(keys: np.ndarray, seconds: np.ndarray, name: Callable[[int], str]) -> dict[str, float]:
    distinct, where = np.unique(keys, return_inverse=True)
    sums = np.bincount(where.reshape(-1), weights=seconds, minlength=len(distinct))
    return {name(key): float(s) for key, s in zip(distinct.tolist(), sums.tolist(), strict=True)}


def _longest_first(sums: dict[str, float]) -> dict[str, float]:
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))
