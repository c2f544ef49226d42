"""Operators torch builds differently on each device: what it does on the target, stated once.

Torch's C++ asks "is this tensor on CUDA?" or "on the CPU?" in a few composite operators. Simulated tensors are
neither, so those few are registered here with the target's own composition.
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.torch_cpu_rnn import CPU_RNN

__all__ = ["install_composites"]

Tensor = torch.Tensor
aten = torch.ops.aten
_lib = torch.library.Library("aten", "IMPL")


def install_composites(device_kind: str) -> None:
    """Register the compositions of this kind of device."""
    if device_kind == "cpu":
        _register("dropout", _dropout_cpu)
        for name, function in CPU_RNN.items():
            _register(name, function)


def _register(name: str, function: Any) -> None:
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        _lib.impl(name, function, key)


def _dropout_cpu(source: Tensor, p: float, train: bool) -> Tensor:
    """The CPU has no fused dropout: a noise tensor of the input's type, scaled in place, then a product."""
    if not train or p == 0 or source.numel() == 0:
        return source
    if p == 1:
        return source.mul(torch.zeros((), dtype=source.dtype))
    noise = torch.empty_like(source).bernoulli_(1 - p).div_(1 - p)
    return source * noise
