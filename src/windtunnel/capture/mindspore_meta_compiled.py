"""Parts of a PyNative program that a card compiles, as its memory sees them: MindSpore's own optimizers.

    a cell whose construct is compiled (nn.AdamWeightDecay, nn.Momentum, ...) ──> holds what it was given until its next call
    AdamWeightDecay ──> the kernels a card runs for it

Here they run as written, operator by operator. Two things would be missing in memory, so they are put back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from mindspore import nn
from mindspore.common import dtype as types

from windtunnel.capture.mindspore_meta_device import MetaDevice, tensors_in
from windtunnel.capture.mindspore_meta_tracker import Storage

__all__ = ["install_compiled"]


def install_compiled(device: MetaDevice) -> None:
    """Before the script's first line."""
    nn.Cell.__call__ = _holding(nn.Cell.__call__, device)
    device.kernels["AdamWeightDecay"] = _adam_weight_decay


def _holding(call: Callable, device: MetaDevice) -> Callable:
    """A compiled graph lets go of what it was given only when its next run reads the same argument."""
    held: dict[int, list[Storage]] = {}  # by cell; an optimizer lives as long as its training

    @wraps(call)
    def holding(cell: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(type(cell).construct, "__wrapped_by_jit__", False):
            return call(cell, *args, **kwargs)
        given = [device.handle(tensor).storage for tensor in tensors_in(args)]
        for old, new in zip(held.pop(id(cell), ()), given, strict=False):
            if new is not old:
                new.replaces = old
        for parameter in cell.get_parameters():
            device.handle(parameter).storage.touch()  # a graph brings all its weights at its start
        try:
            return call(cell, *args, **kwargs)
        finally:
            for storage in given:
                storage.replaces = None
            held[id(cell)] = given

    return holding


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
