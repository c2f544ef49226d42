"""Unknown numbers are assumed to be finite and compare like 1: `isnan`, `x < 0` and `any` of them are false.

    isnan(x), x == x, x < inf ──> certain: the results are known values, and so is what is computed from them
    x < 0                     ──> as for 1, the number an unknown value reads as
    unknown | True            ──> True, and unknown & False is False: a loop with a limit in its condition ends

Values a device would compute are unknown, but a script that stops at a NaN must not stop here. Any other unknown
condition is True (docs/unknown-values.md).
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.kernels import run_generic
from windtunnel.capture.pytorch.kernels.known_values import all_false, ready_values, remember_values
from windtunnel.capture.pytorch.kernels.views_and_copies import special
from windtunnel.capture.pytorch.tensors.storage import sim_of

__all__ = ["install_finite"]

_TESTS = ("isnan", "isinf", "isposinf", "isneginf")
_COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_SELF_COMPARISONS = {"eq": True, "ne": False}  # a number equals itself, unless it is NaN
_FOLLOWED = ("any", "any.dim", "any.dims")
_EITHER = ("logical_or", "logical_or_", "bitwise_or.Tensor", "bitwise_or_.Tensor")
_BOTH = ("logical_and", "logical_and_", "bitwise_and.Tensor", "bitwise_and_.Tensor")


_full = torch.full  # torch's own, before constructors are replaced


def install_finite() -> None:
    """Make these operators return what they return for finite numbers."""
    special.update({f"aten::{name}": _is_false for name in _TESTS})
    special.update(
        {f"aten::{name}.Tensor": _with_itself(is_true) for name, is_true in _SELF_COMPARISONS.items()}
    )
    special.update({f"aten::{name}.Scalar": _as_for_one(compare) for name, compare in _COMPARISONS.items()})
    special.update({f"aten::{name}": _false_if_inputs_are for name in _FOLLOWED})
    special.update({f"aten::{name}": _either for name in _EITHER})
    special.update({f"aten::{name}": _both for name in _BOTH})


def _is_false(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = run_generic(op, args, kwargs)
    _settle(result, False)
    return result


def _with_itself(is_true: bool) -> Any:
    def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = run_generic(op, args, kwargs)
        if args[0] is args[1]:
            _settle(result, is_true)
        return result

    return run


def _as_for_one(compare: Any) -> Any:
    """An unknown number reads as 1, so it must also compare like 1."""

    def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = run_generic(op, args, kwargs)
        if isinstance(args[1], float) and not math.isfinite(args[1]):
            _settle(result, compare(1, args[1]))
        elif not compare(1, args[1]):
            _mark(result)
        return result

    return run


def _false_if_inputs_are(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = run_generic(op, args, kwargs)
    if all(_is_all_false(a) for a in args if isinstance(a, torch.Tensor)):
        _mark(result)
    return result


def _either(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    is_true = any(_is_all_true(side) for side in args[:2])  # before one of them is written to
    result = _false_if_inputs_are(op, args, kwargs)
    if is_true:
        _settle(result, True)
    return result


def _both(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    known = [ready_values(side) for side in args[:2]]
    is_false = any(side is not None and side.numel() and not side.any().item() for side in known)
    result = run_generic(op, args, kwargs)
    if is_false:
        _settle(result, False)
    return result


def _is_all_true(tensor: torch.Tensor) -> bool:
    """Integers are ignored: only a value with all bits set would decide a bitwise or, which is rare."""
    known = ready_values(tensor) if tensor.dtype is torch.bool else None
    return known is not None and bool(known.numel()) and bool(known.all().item())


def _is_all_false(tensor: torch.Tensor) -> bool:
    sim = sim_of(tensor)
    if sim is not None and sim.id in all_false:
        return True
    known = ready_values(tensor)
    return known is not None and not known.any().item()


def _settle(result: torch.Tensor, is_true: bool) -> None:
    """Every element of the result is certain, although the inputs are unknown."""
    if not is_true:
        _mark(result)
    if sim_of(result) is not None and ready_values(result) is None:
        remember_values(result, _full((), is_true, dtype=result.dtype).expand(result.shape))


def _mark(result: torch.Tensor) -> None:
    sim = sim_of(result)
    if sim is not None:
        all_false.add(sim.id)
