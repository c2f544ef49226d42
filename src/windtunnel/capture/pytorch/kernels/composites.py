"""Operators that torch composes differently on each device, composed as on the target device.

Torch's C++ checks "is this tensor on CUDA?" or "on the CPU?" in a few composite operators. Simulated tensors are on
neither, so these operators are registered here with the target's own composition.
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.cpu_rnn import CPU_RNN
from windtunnel.capture.pytorch.kernels.device_argument import simulate
from windtunnel.capture.pytorch.kernels.known_values import remember_values, values_of
from windtunnel.capture.pytorch.tensors.storage import sim_of

__all__ = ["install_composites"]

Tensor = torch.Tensor
aten = torch.ops.aten
_lib = torch.library.Library("aten", "IMPL")
_pack = torch.library.get_kernel("aten::_pack_padded_sequence", "CPU").call_boxed
_full = torch.full  # torch's own, before constructors are replaced
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)


def install_composites(device_kind: str) -> None:
    """Register the compositions of this kind of device."""
    if device_kind == "cpu":
        _register("dropout", _dropout_cpu)
        _register("one_hot", _one_hot_cpu)
        _register("ctc_loss.Tensor", _ctc_loss_cpu)
        for name, function in CPU_RNN.items():
            _register(name, function)
        _lib.impl("_pack_padded_sequence", _pack_cpu, "PrivateUse1")
        for name in ("_pack_padded_sequence_backward", "_pad_packed_sequence"):
            _register(name, _reading_sizes(name))


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


def _one_hot_cpu(source: Tensor, num_classes: int = -1) -> Tensor:
    """On the CPU the classes are checked by value first; without a number of classes, the values decide it."""
    smallest, largest = source.aminmax()
    smallest.item()
    n = num_classes if num_classes > 0 else int(largest.item()) + 1
    return torch.zeros((*source.shape, n), dtype=source.dtype).scatter_(-1, source.unsqueeze(-1), 1)


def _ctc_loss_cpu(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    *rest: Any,
    **kwargs: Any,
) -> Tensor:
    """The lengths are read, as on the CPU; unknown lengths are assumed to be the longest possible."""
    longest = (
        log_probs.shape[0],
        targets.shape[-1] if targets.dim() > 1 else targets.numel() // log_probs.shape[1],
    )
    read = []
    for lengths, most in zip((input_lengths, target_lengths), longest, strict=True):
        known = values_of(lengths.to(torch.int64))
        read.append(known.tolist() if known is not None else [most] * lengths.numel())
    return aten.ctc_loss.IntList(log_probs, targets, *read, *rest, **kwargs)


def _pack_cpu(source: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    real = values_of(lengths)
    if real is None:
        real = _full(lengths.shape, source.shape[1 if batch_first else 0])  # the longest possible
    sizes = torch.empty(int(real[0]), dtype=torch.int64)
    data, real_sizes = _pack(_KEYS, source, real, batch_first)
    remember_values(sizes, real_sizes)
    return data, sizes


def _reading_sizes(name: str) -> Any:
    """Torch reads the batch sizes of packed sequences directly: pass the real ones, and simulate its results."""
    compose = torch.library.get_kernel("aten::" + name, "CPU").call_boxed

    def run(*args: Any) -> Any:
        result = compose(_KEYS, *(_real_sizes(a) for a in args))
        return (
            result
            if isinstance(result, Tensor)
            else tuple(simulate(r) if sim_of(r) is None else r for r in result)
        )

    return run


def _real_sizes(a: Any) -> Any:
    if not isinstance(a, Tensor) or a.dtype is not torch.int64 or a.dim() != 1:
        return a
    known = values_of(a)
    return known if known is not None else a
