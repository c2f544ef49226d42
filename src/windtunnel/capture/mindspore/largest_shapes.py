"""Shapes that depend on values are the largest possible, as in the dry run of a PyTorch script.

    ops.nonzero, masked_select, unique ──> a function with the shape it has if every element counts ──> a noted line

MindSpore's own dry run ends at these operators, in dynamic code and in compiled graphs, because only a device knows how
many elements they find. Theirs reserve the largest output too, and cut it when the device has counted. What takes their
place is written in operators whose shapes are known, so that MindSpore's compiler reads it like any other function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import prod
from typing import Any

import numpy as np
from mindspore import Tensor, bool_, int32, int64, ops
from mindspore.ops import constexpr
from mindspore.ops.auto_generate import clone, gen_ops_def
from mindspore.ops.function import array_func

__all__ = ["install_largest_shapes"]

_NONZERO = "how many elements are nonzero (nonzero, boolean mask)"
_SELECTED = "how many elements a mask selects"
_DISTINCT = "how many distinct values there are (unique)"

_note: Callable[[str, int], None] = lambda what, taken_as: None


def install_largest_shapes(note: Callable[[str, int], None]) -> None:
    """Put functions with known shapes in place of operators that count values; `note` is told of each use."""
    global _note
    _note = note
    array_func.non_zero_ = _nonzero
    array_func.non_zero_ext_ = _nonzero_by_dimension
    array_func.unique_ = _unique
    array_func.unique2_ = _unique2
    array_func.unique_dim_ = _unique_dim
    array_func.unique_consecutive_impl = _unique_consecutive
    gen_ops_def.masked_select_op = _masked_select
    Tensor.masked_select = gen_ops_def.masked_select
    Tensor.unique = _unique_method
    Tensor.__getitem__ = _getitem(Tensor.__getitem__)
    Tensor.__setitem__ = _setitem(Tensor.__setitem__)


# Run while the compiler reads a graph, with the shapes it has found, and at each call in dynamic code.


@constexpr(reuse_result=False, check=False)
def _count(shape: tuple[int, ...], what: str) -> int:
    n = prod(shape)
    _note(what, n)
    return n


@constexpr
def _broadcast(shape: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(np.broadcast_shapes(shape, other))


# Compiled by MindSpore: only what its compiler understands.


def _nonzero(x):
    return ops.zeros((_count(x.shape, _NONZERO), len(x.shape)), int64)


def _nonzero_by_dimension(x):
    n = _count(x.shape, _NONZERO)
    return tuple([ops.zeros((n,), int64) for _ in x.shape])


def _masked_select(x, mask):
    whole = ops.broadcast_to(x, _broadcast(x.shape, mask.shape))
    return ops.reshape(clone(whole), (_count(whole.shape, _SELECTED),))


def _unique(x):
    return ops.zeros((_count(x.shape, _DISTINCT),), x.dtype), ops.zeros(x.shape, int32)


def _unique2(x, is_sorted, return_inverse, return_counts):
    n = _count(x.shape, _DISTINCT)
    return ops.zeros((n,), x.dtype), ops.zeros(x.shape, int64), ops.zeros((n,), int64)


def _unique_dim(x, is_sorted, return_inverse, dim):
    n = _count((x.shape[dim],), _DISTINCT)
    return ops.zeros(x.shape, x.dtype), ops.zeros((n,), int64), ops.zeros((n,), int64)


def _unique_consecutive(x, return_inverse=False, return_counts=False, dim=None):
    if dim is None:
        return _unique2(x, False, return_inverse, return_counts)
    return _unique_dim(x, False, return_inverse, dim)


# Methods that dynamic code calls without passing by the functions above.


def _is_mask(x: Any, index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype == bool_ and 0 < index.ndim <= x.ndim


def _getitem(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @wraps(original)
    def __getitem__(x: Any, index: Any) -> Any:
        if not _is_mask(x, index):
            return original(x, index)
        n = _count(index.shape, _NONZERO)
        return ops.reshape(clone(x), (n, *x.shape[index.ndim :]))

    return __getitem__


def _setitem(original: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    @wraps(original)
    def __setitem__(x: Any, index: Any, value: Any) -> Any:
        return original(x, Ellipsis, 0) if _is_mask(x, index) else original(x, index, value)

    return __setitem__


def _unique_method(x, sorted=True, return_inverse=False, return_counts=False, dim=None):
    return array_func.unique_ext(x, sorted, return_inverse, return_counts, dim)
