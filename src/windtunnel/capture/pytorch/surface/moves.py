"""Move a tensor between devices under autograd: the gradient moves back.

Inside torch every simulated device is the same backend, so torch's own backward of `.to()` would leave a gradient
on its device. This one moves it to the device of its tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.device_argument import allocating_on
from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.tensors.storage import sim_of, world

__all__ = ["move"]

Tensor = torch.Tensor
_plain_to = torch._C.TensorBase.to


def move(source: Tensor, device: torch.device, *args: Any, **kwargs: Any) -> Tensor:
    """`source.to(device, ...)` for a device `source` is not on."""
    if source.requires_grad and torch.is_grad_enabled():
        return _Move.apply(source, device, args, kwargs)
    return _copy(source, device, args, kwargs)


def _copy(source: Tensor, device: torch.device, args: Any, kwargs: Any) -> Tensor:
    if sim_of(source) is not None:
        kwargs = {**kwargs, "copy": True}  # inside torch both are one backend: without this it would not copy
    with allocating_on(device):
        return _plain_to(source, store.SIM, *args, **kwargs)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, device: torch.device, args: Any, kwargs: Any) -> Tensor:
        sim = sim_of(source)
        ctx.device = sim.device if sim is not None else None
        ctx.dtype = source.dtype
        return _copy(source, device, args, kwargs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.device is not None:
            return gradient.to(ctx.device, ctx.dtype), None, None, None
        # a real host tensor needs a real gradient, but its values were never computed
        world.recorder.note_unknown("the gradient of a host tensor", 1)
        return torch.ones(gradient.shape, dtype=ctx.dtype), None, None, None
