"""What is put into a static graph so that its values reach the host. MindSpore's compiler reads most of this file.

construct ──> a token, new at every call ──> values noted, in the order of the program ──> host
          └─> inputs and outputs pass a cell that is the identity, and notes their gradients in backward ──> host

Nothing that computes depends on what is noted: no value of the user goes through an operator with side effects. So the
compiler differentiates in the order it would without us, and sums of gradients keep their bits. The token comes from an
operator without order, for gradients need it; its calls are distinguished anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import constexpr

__all__ = ["Place", "gradient_hook", "set_receiver", "tapped_construct"]


@dataclass(frozen=True, slots=True)
class Place:
    """One point of a graph: which cell, which of its values, and what kind of thing comes from there."""

    cell: int  # index that was given to `tapped_construct`
    path: str  # "input.0", "kwargs.mask", "output.0.1", "parameters.weight", "" for marks
    kind: str  # "enter", "exit", "tensor", "bfloat16" (comes as float32), "constant", "other"
    value: Any = None  # of a constant


_PLACES: list[Place] = []  # graphs that are compiled name places by their index, as long as the process lives
_INDEX: dict[tuple, int] = {}
_RECEIVER: list[Callable[[str, int, Place, np.ndarray], None]] = []
_N_TOKENS = [0]


def set_receiver(receive: Callable[[str, int, Place, np.ndarray], None] | None) -> None:
    """Who gets what running graphs note: receive(stage, token, place, array). The array is only valid in the call."""
    _RECEIVER[:] = [] if receive is None else [receive]


@constexpr
def _place(cell, path, kind, value):
    """At compile time: the number of a place."""
    key = (cell, path, kind, type(value).__name__, value)
    found = _INDEX.get(key)
    if found is None:
        found = _INDEX[key] = len(_PLACES)
        _PLACES.append(Place(cell, path, kind, value))
    return found


def _next_token(token, place, value):
    _N_TOKENS[0] += 1
    return np.array([_N_TOKENS[0]], np.int64)


def _host(stage: str) -> Callable:
    def take(token, place, value):
        for receive in _RECEIVER:
            receive(stage, int(token[0]), _PLACES[int(place[0])], value)
        return token

    return take


def _no_gradient(token, place, value, out, dout):
    return ops.zeros_like(token), ops.zeros_like(place), ops.zeros_like(value)


def _operator(work: Callable, effect: str) -> ops.Custom:
    """A host function of (token, place, value) as an operator of the graph."""
    shape, dtype = (lambda token, place, value: (1,)), (lambda token, place, value: ms.int64)
    found = ops.Custom(work, shape, dtype, func_type="pyfunc", bprop=_no_gradient)
    found.add_prim_attr(effect, True)
    return found


_NONE = Tensor([0], ms.int64)
_token = _operator(_next_token, "side_effect_hidden")  # without order, but no two calls are merged
_take = _operator(_host("forward"), "side_effect_io")
# Reads of parameters are ordered with the optimizer's writes, which other effects are not.
_take_parameter = _operator(_host("forward"), "side_effect_mem")
_take_gradient = _operator(_host("backward"), "side_effect_hidden")
_FLOATS = (ms.float32, ms.float16, ms.bfloat16, ms.float64)


class _Gradient(nn.Cell):
    """The identity, whose gradient is noted on its way."""

    def construct(self, value, token, place, as_float32):
        return value

    def bprop(self, value, token, place, as_float32, out, dout):
        noted = dout
        if as_float32:
            noted = ops.cast(dout, ms.float32)
        gradient = ops.depend(dout, _take_gradient(token, place, noted))
        return gradient, ops.zeros_like(token), ops.zeros_like(place), False


_gradient = _Gradient()


def _note(value, token, cell, path):
    """Send a value and all that it holds to the host."""
    if isinstance(value, Tensor):
        still = ops.stop_gradient(value)
        if value.dtype == ms.bfloat16:
            place = Tensor([_place(cell, path, "bfloat16", None)], ms.int64)
            _take(token, place, ops.cast(still, ms.float32))
        else:
            _take(token, Tensor([_place(cell, path, "tensor", None)], ms.int64), still)
    elif isinstance(value, (tuple, list)):
        index = 0
        for item in value:
            _note(item, token, cell, path + "." + str(index))
            index = index + 1
    elif isinstance(value, dict):
        if len(value) > 0:
            for key, item in value.items():
                _note(item, token, cell, path + "." + str(key))
    elif value is None or isinstance(value, (int, float, str, bool)):
        if ops.isconstant(value):
            _take(token, Tensor([_place(cell, path, "constant", value)], ms.int64), _NONE)
        else:
            _take(token, Tensor([_place(cell, path, "other", None)], ms.int64), _NONE)
    else:
        _take(token, Tensor([_place(cell, path, "other", None)], ms.int64), _NONE)


def _tap(value, token, cell, path):
    """The same value, with its tensors' gradients noted when they come."""
    if isinstance(value, Tensor):
        if isinstance(value, Parameter):
            return value  # it must stay one, for the cell may assign to it
        if value.dtype == ms.bfloat16:
            return _gradient(value, token, Tensor([_place(cell, path, "bfloat16", None)], ms.int64), True)
        if value.dtype in _FLOATS:
            return _gradient(value, token, Tensor([_place(cell, path, "tensor", None)], ms.int64), False)
        return value
    if isinstance(value, tuple):
        items = ()
        index = 0
        for item in value:
            items = (*items, _tap(item, token, cell, path + "." + str(index)))
            index = index + 1
        return items
    if isinstance(value, list):
        items = []
        index = 0
        for item in value:
            items = [*items, _tap(item, token, cell, path + "." + str(index))]
            index = index + 1
        return items
    if isinstance(value, dict):
        if len(value) == 0:
            return value
        named = {}
        for key, item in value.items():
            named[key] = _tap(item, token, cell, path + "." + str(key))
        return named
    return value


def _apart(named):
    """Keyword arguments in two: what may hold tensors, and constants, which the compiler must see as such."""
    tensors = {}
    keys = ()
    others = ()
    if len(named) > 0:
        for key, item in named.items():
            if isinstance(item, (Tensor, tuple, list, dict)):
                tensors[key] = item
            else:
                keys = (*keys, key)
                others = (*others, item)
    return tensors, dict(zip(keys, others))  # noqa: B905  the compiler knows no `strict`


def tapped_construct(
    inner: Callable, cell: int, parameters: Mapping[str, str], has_gradients: bool
) -> Callable:
    """A `construct` that does what `inner` does and tells the host; to be bound to its cell.

    `parameters` are the cell's attributes that are parameters, with their names in a dump.
    """
    pairs = tuple(parameters.items())
    has_parameters = len(pairs) > 0

    def construct(self, *args, **kwargs):
        token = _token(_NONE, _NONE, _NONE)
        _take(token, Tensor([_place(cell, "", "enter", None)], ms.int64), _NONE)
        _note(args, token, cell, "input")
        _note(kwargs, token, cell, "kwargs")
        if has_parameters:
            for attribute, name in pairs:
                value = ops.stop_gradient(getattr(self, attribute))
                path = "parameters." + name
                if value.dtype == ms.bfloat16:
                    place = Tensor([_place(cell, path, "bfloat16", None)], ms.int64)
                    _take_parameter(token, place, ops.cast(value, ms.float32))
                else:
                    _take_parameter(token, Tensor([_place(cell, path, "tensor", None)], ms.int64), value)
        if has_gradients:
            tensors, others = _apart(kwargs)
            out = inner(*_tap(args, token, cell, "input"), **_tap(tensors, token, cell, "kwargs"), **others)
        else:
            out = inner(*args, **kwargs)
        if isinstance(out, tuple):
            path = "output"
        else:
            path = "output.0"
        _note(out, token, cell, path)
        _take(token, Tensor([_place(cell, "", "exit", None)], ms.int64), _NONE)
        if has_gradients:
            return _tap(out, token, cell, path)
        return out

    return construct


def gradient_hook(cell: int, name: str) -> Callable:
    """A hook for a parameter of the cell that notes its gradient, in a graph as outside."""
    path = "parameters." + name

    def hook(gradient):
        if not isinstance(gradient, Tensor):
            return gradient  # the gradient of a sparse table
        if gradient.dtype == ms.bfloat16:
            place = Tensor([_place(cell, path, "bfloat16", None)], ms.int64)
            return ops.depend(gradient, _take_gradient(_NONE, place, ops.cast(gradient, ms.float32)))
        place = Tensor([_place(cell, path, "tensor", None)], ms.int64)
        return ops.depend(gradient, _take_gradient(_NONE, place, gradient))

    return hook
