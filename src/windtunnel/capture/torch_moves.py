"""Moving a tensor between devices under autograd: the gradient moves back.

Inside torch every simulated device is the same backend, so torch's own backward of `.to()` would leave a gradient
where it is. This one brings it to the device its tensor is on.
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture import torch_storage as store
from windtunnel.capture.torch_named_device import aiming_at
from windtunnel.capture.torch_storage import sim_of, world

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
    with aiming_at(device):
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
        # a real host tensor wants a real gradient, whose values nobody computed
        world.recorder.invent("the gradient of a host tensor", 1)
        return torch.ones(gradient.shape, dtype=ctx.dtype), None, None, None
