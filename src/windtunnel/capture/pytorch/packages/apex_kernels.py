"""Apex's compiled modules: what its Python, ours or an installed one, calls.

fused_layer_norm_cuda.forward_affine(x, shape, weight, bias, eps) ──> output, mean and inverse deviation of each row (fp32)
                      backward_affine                             ──> gradients; while it runs 16 partial sums of each weight's
amp_C.multi_tensor_adam(chunk, flag, [gradients, weights, moments, moments], …) ──> one row, all but the gradients written
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.define_operator import announce
from windtunnel.capture.pytorch.kernels.launches import record_launch

__all__ = ["apex_kernel_modules"]

Tensor = torch.Tensor
_PARTS = 16  # partial sums of a weight's gradient
_SUMS = 320  # partial sums of a norm


def apex_kernel_modules() -> dict[str, dict[str, Any]]:
    return {
        "fused_layer_norm_cuda": _norms(),
        "fast_layer_norm": {"ln_fwd": _fast_forward, "ln_bwd": _fast_backward},
        "amp_C": _multi_tensor(),
        "fused_weight_gradient_mlp_cuda": {
            "wgrad_gemm_accum_fp32": _add_weight_gradient,
            "wgrad_gemm_accum_fp16": _add_weight_gradient,
        },
    }


def _add_weight_gradient(x: Tensor, gradient: Tensor, total: Tensor) -> None:
    """A matrix product that is added to what is there, as Megatron accumulates gradients."""
    announce("apex's kernels are not installed here: they were simulated")
    rows, gradients = x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
    if total.dtype == x.dtype:
        total.addmm_(gradients.t(), rows)
    else:
        torch.addmm(total, gradients.t(), rows, out_dtype=total.dtype, out=total)


def _launch(name: str, read: Sequence[Tensor | None], written: Sequence[Tensor | None]) -> None:
    announce("apex's kernels are not installed here: they were simulated")
    record_launch(name, "", [t for t in read if t is not None], [t for t in written if t is not None])


# -- normalisation --------------------------------------------------------------------------------------------


def _statistics(x: Tensor, shape: Sequence[int]) -> Tensor:
    """One number for each row, in fp32 for narrow types."""
    return x.new_empty((x.numel() // max(prod(shape), 1),), dtype=_wide(x.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _norms() -> dict[str, Callable[..., Any]]:
    def forward(x: Tensor, shape: Sequence[int], *rest: Any, is_rms: bool, is_mixed: bool = False) -> Any:
        weights = [w for w in rest[:-1] if isinstance(w, Tensor)]
        output = torch.empty_like(x, dtype=weights[0].dtype if is_mixed else x.dtype)
        statistics = [_statistics(x, shape)] if is_rms else [_statistics(x, shape), _statistics(x, shape)]
        name = "rms_forward" if is_rms else "forward"
        _launch(f"fused_layer_norm_cuda.{name}", [x, *weights], [output, *statistics])
        return [output, *statistics]

    def backward(gradient: Tensor, *rest: Any, is_rms: bool) -> Any:
        statistics = rest[:1] if is_rms else rest[:2]
        x, shape, *others = rest[len(statistics) :]
        weights = [w for w in others if isinstance(w, Tensor)]
        results = [torch.empty_like(x), *map(torch.empty_like, weights)]
        sums = [x.new_empty((_PARTS, prod(shape)), dtype=_wide(x.dtype)) for _ in weights]
        name = "rms_backward" if is_rms else "backward"
        _launch(f"fused_layer_norm_cuda.{name}", [gradient, *statistics, x, *weights], [*results, *sums])
        return results if weights else results[0]

    layer, rms = partial(forward, is_rms=False), partial(forward, is_rms=True)
    layer_back, rms_back = partial(backward, is_rms=False), partial(backward, is_rms=True)
    return {
        "forward": layer,
        "forward_affine": layer,
        "forward_affine_mixed_dtypes": partial(layer, is_mixed=True),
        "backward": layer_back,
        "backward_affine": layer_back,
        "rms_forward": rms,
        "rms_forward_affine": rms,
        "rms_forward_affine_mixed_dtypes": partial(rms, is_mixed=True),
        "rms_backward": rms_back,
        "rms_backward_affine": rms_back,
    }


def _fast_forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> list[Tensor]:
    output = x.new_empty(x.shape)
    mean, deviation = (x.new_empty((x.shape[0],), dtype=torch.float32) for _ in range(2))
    _launch("fast_layer_norm.ln_fwd", [x, weight, bias], [output, mean, deviation])
    return [output, mean, deviation]


def _fast_backward(
    gradient: Tensor, x: Tensor, mean: Tensor | None, deviation: Tensor, weight: Tensor, *rest: Any
) -> list[Tensor]:
    results = [torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)]
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    sums = [x.new_empty((blocks, weight.numel()), dtype=torch.float32) for _ in range(2)]
    _launch("fast_layer_norm.ln_bwd", [gradient, x, mean, deviation, weight], [*results, *sums])
    return [*results, *sums]


# -- lists of tensors -----------------------------------------------------------------------------------------


def _multi_tensor() -> dict[str, Callable[..., Any]]:
    """Each updates the lists from the given one on; the flag stays as it is: gradients count as finite."""

    def update(
        chunk: int, flag: Tensor, lists: Sequence[Sequence[Tensor]], *_: Any, name: str, first: int
    ) -> None:
        read = [t for each in (lists[:first] if first == len(lists) - 1 else lists) for t in each]
        _launch(f"amp_C.{name}", read, [t for each in lists[first:] for t in each])

    found: dict[str, Callable[..., Any]] = {
        f"multi_tensor_{name}": partial(update, name=f"multi_tensor_{name}", first=1)
        for name in (
            "adam",
            "adam_capturable",
            "adam_capturable_master",
            "sgd",
            "adagrad",
            "novograd",
            "scale",
        )
    }
    found["multi_tensor_axpby"] = partial(update, name="multi_tensor_axpby", first=2)
    for name in ("lamb", "lamb_mp"):  # it keeps the update where the gradient was
        found[f"multi_tensor_{name}"] = partial(update, name=f"multi_tensor_{name}", first=0)
    found |= {
        f"multi_tensor_{name}": partial(_norm, name) for name in ("l2norm", "l2norm_mp", "l2norm_scale")
    }
    return found


def _norm(
    name: str, chunk: int, flag: Tensor, lists: Sequence[Sequence[Tensor]], *rest: Any
) -> tuple[Tensor, Tensor]:
    """The norm of all, and of each if it is asked for."""
    tensors = lists[0]
    is_each = any(value is True for value in rest)
    parts = torch.zeros(_SUMS, dtype=torch.float32, device=tensors[0].device)
    norm = tensors[0].new_empty((1,), dtype=torch.float32)
    each = tensors[0].new_empty((len(tensors) if is_each else 0,), dtype=torch.float32)
    outputs = [t for one in lists[1:] for t in one]
    _launch(f"amp_C.multi_tensor_{name}", tensors, [parts, norm, each, *outputs])
    return norm, each
