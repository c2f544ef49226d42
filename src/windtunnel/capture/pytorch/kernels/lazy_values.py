"""What operators make of values that are computed when something reads them (lazy_nodes.py).

    one_hot, sort, sum, cumsum, scatter_ of lazy values ──> lazy values
    masked_fill, scatter of unknown scores              ──> Preferred: which of them are the highest
    prediction == label                                 ──> unknown, as without a routing

This is imported when the first value is lazy.
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.known_values import (
    Fill,
    Implied,
    covers_storage,
    discard_values,
    ready_values,
)
from windtunnel.capture.pytorch.kernels.lazy_nodes import MOST_BYTES, Lazy, derive, mask_of
from windtunnel.capture.pytorch.kernels.shape_inference import Entry
from windtunnel.capture.pytorch.tensors.storage import sim_of, world
from windtunnel.units import format_bytes

__all__ = ["Preferred", "copy_implied", "follow_lazily"]

Tensor = torch.Tensor


class Preferred(Implied):
    """Unknown scores of which it is known which elements are the highest: those that are not masked out."""

    __slots__ = ("allowed", "axis")
    is_complete = False

    def __init__(self, allowed: Lazy, axis: int | None) -> None:
        self.allowed = allowed  # one bool for each element of the storage
        self.axis = axis  # along which experts are, where a scatter wrote their scores


# -- operators --------------------------------------------------------------------------------------------------


def follow_lazily(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Any], entry: Entry,
                  written: tuple[int, ...], is_random: bool) -> None:  # fmt: skip
    """After an operator with a lazy input: what its results and written arguments hold now."""
    targets = _written(op, args, kwargs, written)
    specs = [
        (result, spec) if spec.__class__ is tuple and spec[0] == "new" else (None, spec)
        for result, spec in zip(results, entry.outputs, strict=True)
    ]
    if not is_random and not entry.resizes and not _is_measured(op, args) and _has_room(specs):
        overwritten = [
            t for t in targets if _is_out(op) and (s := sim_of(t)) is not None and covers_storage(t, s)
        ]
        if derive(op, args, kwargs, specs, targets, overwritten):
            return
    preferred = _preference(op, args)
    for each in targets:
        discard_values(each)
    if preferred is not None and results and isinstance(results[0], Tensor):
        _prefer(results[0], preferred)


def _is_out(op: Any) -> bool:
    return any(a.is_out for a in op._schema.arguments)


def _written(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: tuple[int, ...]
) -> list[Tensor]:
    found: list[Tensor] = []
    for i in written:
        a = args[i] if i < len(args) else kwargs.get(op._schema.arguments[i].name)
        found += [a] if isinstance(a, Tensor) else [t for t in a or () if isinstance(t, Tensor)]
    return found


def _is_measured(op: Any, args: tuple[Any, ...]) -> bool:
    """`prediction == label`: whether a prediction is right is not decided by a routing."""
    if op._schema.name not in ("aten::eq", "aten::ne") or not isinstance(args[1], Tensor):
        return False
    if args[0].shape != args[1].shape or args[0].numel() < 2:
        return False
    return sum(_is_routed(a) for a in args[:2]) == 1


def _is_routed(tensor: Tensor) -> bool:
    sim = sim_of(tensor)
    return sim is not None and isinstance(sim.values, Lazy) and bool(sim.values.sources())


def _has_room(specs: list[tuple[Any, Any]]) -> bool:
    n_bytes = sum(spec[4] for result, spec in specs if result is not None)
    if n_bytes > MOST_BYTES:
        world.recorder.notice(
            f"{world.recorder.user_line()} computes {format_bytes(n_bytes)} from an assumed routing or other known values;"
            f" values up to {format_bytes(MOST_BYTES)} are followed, so these count as unknown where they are read, and"
            " windtunnel.mock can set them"
        )
    return n_bytes <= MOST_BYTES


def copy_implied(target: Tensor, source: Tensor) -> None:
    """`target.copy_(source)` where the source's values follow from something; both are simulated."""
    target_sim, source_sim = sim_of(target), sim_of(source)
    assert target_sim is not None
    assert source_sim is not None
    held, is_whole = source_sim.values, covers_storage(target, target_sim)
    if isinstance(held, Fill) and is_whole:
        target_sim.values = Fill(_cast(held.value, target.dtype))
    elif isinstance(held, Preferred) and is_whole and target.stride() == source.stride():
        target_sim.values = held
    elif not isinstance(held, Preferred) and not (isinstance(held, Fill) and target_sim.values is None):
        written = [target] if is_whole else []
        if not derive(torch.ops.aten.copy_.default, (target, source), {}, [], [target], written):
            target_sim.values = None
    else:
        target_sim.values = None


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return bool(value) if dtype is torch.bool else float(value) if dtype.is_floating_point else int(value)


# -- scores of which the highest are known ----------------------------------------------------------------------

_MASKING = ("aten::masked_fill", "aten::masked_fill_")
_SCATTERING = ("aten::scatter", "aten::scatter_")
_KEEPING_ORDER = ("aten::_softmax", "aten::sigmoid", "aten::clone")


def _prefer(tensor: Tensor, preferred: Preferred) -> None:
    sim = sim_of(tensor)
    if sim is not None and covers_storage(tensor, sim) and tensor.is_contiguous():
        sim.values = preferred


def _preference(op: Any, args: tuple[Any, ...]) -> Preferred | None:
    """What an operator whose result is unknown still says about the highest elements of it."""
    name = op._schema.name
    if name in _MASKING:
        return _unmasked(*args[:3])
    if name in _SCATTERING and len(args) == 4:
        return _scattered(*args[:3])
    if name in _KEEPING_ORDER:
        sim = sim_of(args[0])
        is_kept = sim is not None and isinstance(sim.values, Preferred) and args[0].is_contiguous()
        return sim.values if is_kept and sim is not None and covers_storage(args[0], sim) else None
    return None


def _unmasked(scores: Tensor, mask: Tensor, value: Any) -> Preferred | None:
    """`scores.masked_fill(mask, -inf)`: the others are higher."""
    if not isinstance(value, (int, float)) or value > 0 or not _is_routed(mask):
        return None
    return Preferred(mask_of(torch.ops.aten.logical_not.default, [mask.expand(scores.shape)], scores), None)


def _scattered(base: Tensor, dim: int, index: Tensor) -> Preferred | None:
    """`zeros.scatter(1, experts, scores)`: nothing else is above zero."""
    sim = sim_of(base)
    if sim is None or not _is_routed(index):
        return None
    held = sim.values.value if isinstance(sim.values, Fill) else ready_values(base)
    if held is None or (bool(held.any()) if isinstance(held, Tensor) else held):
        return None
    chosen = mask_of(torch.ops.aten.scatter.value, [base, dim, index, True], base)
    return Preferred(chosen, dim % base.dim())
