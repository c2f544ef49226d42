"""A simulated number is finite, and compares as 1: `isnan`, `x < 0` and `any` of them are false.

Values a device would compute are unknown, but a script that stops at a NaN must not stop here. Everything else
that is unknown and asked for its truth is True (docs/unknown-values.md).
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from windtunnel.capture.torch_kernels import run_generic
from windtunnel.capture.torch_operators import special
from windtunnel.capture.torch_storage import sim_of
from windtunnel.capture.torch_values import all_false

__all__ = ["install_finite"]

_TESTS = ("isnan", "isinf", "isposinf", "isneginf")
_COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_FOLLOWED = ("any", "any.dim", "any.dims", "logical_or", "bitwise_or.Tensor")


def install_finite() -> None:
    """Let the answers of these operators be known to be false."""
    special.update({f"aten::{name}": _is_false for name in _TESTS})
    special.update({f"aten::{name}.Scalar": _as_for_one(compare) for name, compare in _COMPARISONS.items()})
    special.update({f"aten::{name}": _false_if_inputs_are for name in _FOLLOWED})


def _is_false(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = run_generic(op, args, kwargs)
    _mark(result)
    return result


def _as_for_one(compare: Any) -> Any:
    """An unknown number reads as 1: whether it is below zero must be answered for 1, too."""

    def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = run_generic(op, args, kwargs)
        if not compare(1, args[1]):
            _mark(result)
        return result

    return run


def _false_if_inputs_are(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = run_generic(op, args, kwargs)
    inputs = [sim_of(a) for a in args if isinstance(a, torch.Tensor)]
    if all(sim is not None and sim.id in all_false for sim in inputs):
        _mark(result)
    return result


def _mark(result: torch.Tensor) -> None:
    sim = sim_of(result)
    if sim is not None:
        all_false.add(sim.id)
