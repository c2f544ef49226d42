"""Unknown numbers are assumed to be finite and compare like 1: `isnan`, `x < 0` and `any` of them are false.

    isnan(x), x == x, x < inf ──> certain: the results are known values, and so is what is computed from them
    x < 0                     ──> as for 1, the number an unknown value reads as
    token == end_of_text      ──> false: an unknown integer equals no given one, 1 included
    unknown | True            ──> True, and unknown & False is False: a loop with a limit in its condition ends

Values a device would compute are unknown, but a script that stops at a NaN must not stop here, and a sampled token
must not end a text that a real model goes on with. Any other unknown condition is True (docs/unknown-values.md).
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.kernels import run_generic
from windtunnel.capture.pytorch.kernels.known_values import (
    all_false,
    is_floating,
    ready_values,
    remember_values,
)
from windtunnel.capture.pytorch.kernels.views_and_copies import special
from windtunnel.capture.pytorch.tensors.storage import sim_of

__all__ = ["install_finite"]

_TESTS = ("isnan", "isinf", "isposinf", "isneginf")
_COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_EQUALITIES = {"eq": True, "ne": False}  # a number equals itself, unless it is NaN
# Of inputs that are all false or 0, these are false or 0.
_FOLLOWED = ("any", "any.dim", "any.dims", "all", "all.dim", "all.dims", "max", "max.dim", "amax")
_EITHER = ("logical_or", "logical_or_", "bitwise_or.Tensor", "bitwise_or_.Tensor")
_BOTH = ("logical_and", "logical_and_", "bitwise_and.Tensor", "bitwise_and_.Tensor")


_full = torch.full  # torch's own, before constructors are replaced


def install_finite() -> None:
    """Make these operators return what they return for finite numbers."""
    special.update({f"aten::{name}": _is_false for name in _TESTS})
    special.update({f"aten::{name}.Tensor": _equality(is_equal) for name, is_equal in _EQUALITIES.items()})
    special.update({f"aten::{name}.Scalar": _as_for_one(compare) for name, compare in _COMPARISONS.items()})
    special.update({f"aten::isin.{name}": _is_among for name in ("Tensor_Tensor", "Tensor_Scalar")})
    special.update({f"aten::{name}": _false_if_inputs_are for name in _FOLLOWED})
    special.update({f"aten::{name}": _either for name in _EITHER})
    special.update({f"aten::{name}": _both for name in _BOTH})
    special["aten::bitwise_and.Scalar"] = _with_a_constant


def _is_false(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = run_generic(op, args, kwargs)
    _settle(result, False)
    return result


def _equality(is_equal: bool) -> Any:
    def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = run_generic(op, args, kwargs)
        if args[0] is args[1]:
            _settle(result, is_equal)
        elif is_equal and _is_one_of_few(args[0], args[1]):
            _mark(result)
        return result

    return run


def _is_among(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = run_generic(op, args, kwargs)
    if not kwargs.get("invert") and _is_one_of_few(args[0], args[1]):
        _mark(result)
    return result


def _is_one_of_few(unknown: torch.Tensor, given: Any) -> bool:
    """`tokens == end`, `isin(tokens, ends)`: unknown integers against known ones that are not a value for each of them.

    Two tensors of one shape are labels and predictions, or a check that the script makes: they stay unknown.
    """
    if is_floating(unknown.dtype) or unknown.dtype is torch.bool or ready_values(unknown) is not None:
        return False
    return not isinstance(given, torch.Tensor) or (
        given.shape != unknown.shape
        and ready_values(given) is not None
        and given.numel() < unknown.numel() + 64
    )


def _as_for_one(compare: Any) -> Any:
    """An unknown number reads as 1, so it must also compare like 1; but an unknown integer equals no given number."""

    def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = run_generic(op, args, kwargs)
        if ready_values(result) is not None:
            return result
        number = args[1]
        if isinstance(number, float) and not math.isfinite(number):
            _settle(result, compare(1, number))
        elif _is_all_false(args[0]):
            if not compare(0, number):
                _mark(result)
        elif not compare(1, number) or (compare is operator.eq and _is_one_of_few(args[0], number)):
            _mark(result)
        return result

    return run


def _false_if_inputs_are(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    is_false = bool(all_false) and _are_all_false(args)  # before one of them is written to
    result = run_generic(op, args, kwargs)
    if is_false:
        _mark(result[0] if isinstance(result, (tuple, list)) else result)
    return result


def _are_all_false(args: tuple[Any, ...]) -> bool:
    tensors = [a for each in args for a in (each if isinstance(each, (list, tuple)) else (each,))]
    return all(_is_all_false(a) for a in tensors if isinstance(a, torch.Tensor))


def _either(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    is_true = any(_is_all_true(side) for side in args[:2])  # before one of them is written to
    result = _false_if_inputs_are(op, args, kwargs)
    if is_true:
        _settle(result, True)
    return result


def _both(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    is_false = any(_is_certainly_false(side) for side in args[:2])
    may_be_marked = bool(all_false) and any(_is_all_false(side) for side in args[:2])
    result = run_generic(op, args, kwargs)
    if is_false:
        _settle(result, False)
    elif may_be_marked and ready_values(result) is None:
        _mark(result)
    return result


def _with_a_constant(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`unknown & False`, with a constant of the program."""
    result = run_generic(op, args, kwargs)
    if not args[1]:
        _settle(result, False)
    return result


def _is_certainly_false(tensor: torch.Tensor) -> bool:
    known = ready_values(tensor)
    return known is not None and bool(known.numel()) and not known.any().item()


def _is_all_true(tensor: torch.Tensor) -> bool:
    """Integers are ignored: only a value with all bits set would decide a bitwise or, which is rare."""
    known = ready_values(tensor) if tensor.dtype is torch.bool else None
    return known is not None and bool(known.numel()) and bool(known.all().item())


def _is_all_false(tensor: torch.Tensor) -> bool:
    known = ready_values(tensor)
    if known is not None:
        return bool(known.numel()) and not known.any().item()
    sim = sim_of(tensor)
    return sim is not None and sim.id in all_false


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
