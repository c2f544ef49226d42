"""Model the memory of the parts of a PyNative program that a device compiles: MindSpore's optimizers, and `jit`.

    a compiled function or cell (nn.AdamWeightDecay, amp.all_finite, ...) ──> holds what it was given until its next call
    AdamWeightDecay ──> the kernels a device runs for it

On the meta device they run as written, operator by operator. That lacks two effects on memory, which are added here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from mindspore import nn
from mindspore.common import dtype as types
from mindspore.graph import api

from windtunnel.capture.mindspore.meta.device import MetaDevice, tensors_in
from windtunnel.capture.mindspore.meta.tensors import replace_function
from windtunnel.capture.mindspore.meta.tracker import Storage

__all__ = ["install_compiled"]

_MARK = "__wrapped_by_jit__"  # MindSpore's own


def install_compiled(device: MetaDevice) -> set[str]:
    """Before the script's first line. Returns the names of the script's own compiled functions, as it fills."""
    own: set[str] = set()
    held = _Held(device)
    nn.Cell.__call__ = _holding_cell(nn.Cell.__call__, held)
    for function in _compiled_functions():
        replace_function(function, _holding(function, held))
    replace_function(api.jit, _holding_jit(api.jit, held, own))
    device.kernels["AdamWeightDecay"] = _adam_weight_decay
    return own


class _Held:
    """What compiled graphs hold: each argument until the next run reads the one that replaces it."""

    def __init__(self, device: MetaDevice) -> None:
        self.device = device
        self._of: dict[int, list[Storage]] = {}  # by the compiled object, which lives as long as the training

    def run(self, compiled: Any, call: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        given = [self.device.handle(tensor).storage for tensor in tensors_in(args)]
        for old, new in zip(self._of.pop(id(compiled), ()), given, strict=False):
            if new is not old:
                new.replaces = old
        try:
            return call()
        finally:
            for storage in given:
                storage.replaces = None
            self._of[id(compiled)] = given


def _holding_cell(call: Callable, held: _Held) -> Callable:
    @wraps(call)
    def __call__(cell: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(type(cell).construct, _MARK, False):
            return call(cell, *args, **kwargs)
        for parameter in cell.get_parameters():
            held.device.handle(parameter).storage.touch()  # a graph loads all its weights when it starts
        return held.run(cell, lambda: call(cell, *args, **kwargs), args)

    return __call__


def _holding(function: Callable, held: _Held) -> Callable:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return held.run(function, lambda: function(*args, **kwargs), args)

    return run


def _holding_jit(jit: Callable, held: _Held, own: set[str]) -> Callable:
    def noted(compiled: Any) -> Any:
        if not getattr(compiled, _MARK, False):
            return compiled  # a cell, or a decorator that still waits for its function
        own.add(compiled.__name__)
        return _holding(compiled, held)

    @wraps(jit)
    def watched_jit(*args: Any, **kwargs: Any) -> Any:
        made = jit(*args, **kwargs)
        if args or kwargs.get("function") is not None:
            return noted(made)
        return lambda function: noted(made(function))

    return watched_jit


def _compiled_functions() -> list[Callable]:
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "mindspore"]
    found = {id(value): value for module in modules for value in vars(module).values() if _is_compiled(value)}
    return list(found.values())


def _is_compiled(value: Any) -> bool:
    return isinstance(value, type(_is_compiled)) and getattr(value, _MARK, False)


def _adam_weight_decay(device: MetaDevice, given: list[Any]) -> None:
    """In place for float32. Otherwise the kernel works on float32 copies, and its results are written back."""
    weight, first, second, *numbers, gradient = given
    state = [weight, first, second]
    if all(tensor.dtype == types.float32 for tensor in (*state, gradient)):
        device.record("AdamApplyOneWithDecayAssign", [gradient, second, first, weight, *numbers], state)
        return
    wide = [_cast(device, tensor, types.float32) for tensor in (*state, gradient)]
    results = [device.new_tensor(tuple(tensor.shape), types.float32) for tensor in state]
    device.record("AdamApplyOneWithDecay", [*reversed(wide), *numbers], results)
    del wide
    narrow = []
    for tensor in state:
        narrow.append(_cast(device, results.pop(0), tensor.dtype))
    for tensor in state:
        device.record("Assign", [tensor, narrow.pop(0)], [tensor])


def _cast(device: MetaDevice, tensor: Any, dtype: Any) -> Any:
    if tensor.dtype == dtype:
        return tensor
    result = device.new_tensor(tuple(tensor.shape), dtype)
    device.record("Cast", [tensor], [result])
    return result
