"""Scaled dot-product attention as the *target* device would run it.

    F.scaled_dot_product_attention ──> which kernel would the device pick? ──> that kernel's operator

The kernel decides memory: flash and efficient attention keep a log-sum-exp per row, math keeps whole score
matrices (51 GiB more for a 7 B model at sequence 4096). Torch's own choice queries a CUDA context, which
does not exist here, so its rules are restated below for the capability of the simulated device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from windtunnel.capture.pytorch.kernels.device_argument import plain_device
from windtunnel.capture.pytorch.kernels.type_checks import check_attention
from windtunnel.capture.pytorch.tensors import storage as store

__all__ = ["Attention", "choose_cpu", "choose_cuda", "install_attention"]

Tensor = torch.Tensor
aten = torch.ops.aten
_lib = torch.library.Library("aten", "IMPL")
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Attention:
    """One call, as far as the choice of kernel depends on it."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    is_causal: bool
    is_grouped: bool

    @property
    def needs_grad(self) -> bool:
        wanted = self.query.requires_grad or self.key.requires_grad or self.value.requires_grad
        return wanted and torch.is_grad_enabled()


def install_attention(choose: Callable[[Attention], str]) -> None:
    """Make attention on simulated tensors follow `choose`: flash, efficient, cudnn, cpu_flash, fused or math."""

    def attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
               is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Tensor:  # fmt: skip
        check_attention(query, key, value)
        call = Attention(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        # torch's own device type: a wrapper of simulated tensors (a DTensor) has no storage of its own
        is_simulated = all(plain_device(t).type == store.SIM.type for t in (query, key, value))
        kernel = choose(call) if is_simulated else "math"
        return _KERNELS[kernel](call, scale)

    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        _lib.impl("scaled_dot_product_attention", attend, key)


# -- the choice ---------------------------------------------------------------------------------------------


def choose_cuda(capability: tuple[int, int]) -> Callable[[Attention], str]:
    """The rules of torch's CUDA build for a device of this compute capability."""
    prefers_cudnn = capability[0] in (9, 10)
    order = ("cudnn", "flash", "efficient") if prefers_cudnn else ("flash", "efficient", "cudnn")

    def choose(a: Attention) -> str:
        for name in order:
            if _CAN_USE[name](a, capability):
                return name
        if not torch.backends.cuda.math_sdp_enabled():
            raise RuntimeError("No available kernel. Aborting execution.")
        return "math"

    return choose


def choose_cpu(a: Attention) -> str:
    """The rules of torch's CPU build."""
    q, k, v = a.query, a.key, a.value
    is_dense = q.dim() == k.dim() == v.dim() == 4 and all(n > 0 for n in (*q.shape, *k.shape))
    same_head = q.shape[-1] == k.shape[-1] == v.shape[-1]
    same_type = q.dtype == k.dtype == v.dtype and q.dtype in (torch.float32, torch.float64, *_HALVES)
    last_dim_ok = all(t.stride(-1) == 1 for t in (q, k, v))
    mask_ok = a.mask is None or (not a.mask.requires_grad and a.mask.dim() in (2, 4))
    heads_ok = (
        is_dense and q.shape[0] == k.shape[0] and (a.is_grouped or q.shape[1] == k.shape[1] == v.shape[1])
    )
    fits = is_dense and same_head and same_type and last_dim_ok and mask_ok and heads_ok
    return "cpu_flash" if fits and a.dropout == 0.0 and torch.backends.cuda.flash_sdp_enabled() else "math"


def choose_npu(a: Attention) -> str:
    is_fused = a.query.dim() == 4 and a.query.dtype in _HALVES and a.query.shape[-1] == a.value.shape[-1]
    return "fused" if is_fused else "math"


def _heads_ok(a: Attention) -> bool:
    q, k, v = a.query, a.key, a.value
    if not (q.shape[0] == k.shape[0] == v.shape[0]) or 0 in (*q.shape, *k.shape):
        return False
    if a.is_grouped:
        return k.shape[1] == v.shape[1] and q.shape[1] % k.shape[1] == 0
    return q.shape[1] == k.shape[1] == v.shape[1]


def _is_dense_4d(a: Attention) -> bool:
    return a.query.dim() == a.key.dim() == a.value.dim() == 4


def _half_types(capability: tuple[int, int]) -> tuple[torch.dtype, ...]:
    return _HALVES if capability[0] >= 8 else (torch.float16,)


def _has_dtype(a: Attention, allowed: tuple[torch.dtype, ...]) -> bool:
    return a.query.dtype == a.key.dtype == a.value.dtype and a.query.dtype in allowed


def _last_stride_is_one(a: Attention) -> bool:
    return all(t.stride(-1) == 1 or t.shape[-1] == 1 for t in (a.query, a.key, a.value))


def _can_use_flash(a: Attention, capability: tuple[int, int]) -> bool:
    head = a.query.shape[-1]
    is_consumer = (8, 6) <= capability <= (8, 9) or capability[0] == 12
    trains_wide_head = a.needs_grad and is_consumer and not (head <= 192 or (a.dropout == 0 and head > 224))
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and _is_dense_4d(a)
        and a.mask is None
        and head == a.key.shape[-1] == a.value.shape[-1]
        and head <= 256
        and capability >= (8, 0)
        and not trains_wide_head
        and not (a.is_causal and a.query.shape[-2] != a.key.shape[-2])
        and _has_dtype(a, _half_types(capability))
        and _heads_ok(a)
        and _last_stride_is_one(a)
    )


def _can_use_efficient(a: Attention, capability: tuple[int, int]) -> bool:
    is_half = a.query.dtype in _HALVES
    alignment = 4 if capability[0] >= 8 else 1
    if capability[0] >= 8 or (capability[0] == 7 and is_half):
        alignment = max(alignment, 128 // (16 if is_half else 32))
    allowed = (
        (torch.float16, torch.float32, torch.bfloat16)
        if capability[0] >= 8
        else (torch.float16, torch.float32)
    )
    q, k, v = a.query, a.key, a.value
    bytes_aligned = capability[0] < 8 or all(
        t.storage_offset() * t.element_size() % (alignment * t.element_size()) == 0 for t in (q, k, v)
    )
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and _is_dense_4d(a)
        and q.shape[-1] == k.shape[-1]
        and q.shape[-1] % alignment == 0
        and v.shape[-1] % alignment == 0
        and bytes_aligned
        and _heads_ok(a)
        and q.shape[1] == k.shape[1]  # this kernel does not support grouped heads
        and all(t.stride(-1) == 1 for t in (q, k, v))
        and _has_dtype(a, allowed)
    )


def _can_use_cudnn(a: Attention, capability: tuple[int, int]) -> bool:
    q, k, v = a.query, a.key, a.value
    limit = 256 if capability[0] in (9, 10) else 128
    if not (torch.backends.cuda.cudnn_sdp_enabled() and _is_dense_4d(a) and capability >= (8, 0)):
        return False
    head_q, head_v = q.shape[-1], v.shape[-1]
    if (
        limit == 256
        and a.needs_grad
        and not ((head_q <= 128 and head_v <= 128) or (head_q, head_v) in ((192, 128), (256, 256)))
    ):
        return False
    return (
        not torch.are_deterministic_algorithms_enabled()
        and _has_dtype(a, _half_types(capability))
        and (a.dropout * 16).is_integer()
        and max(head_q, head_v) <= limit
        and head_q % 8 == 0 == head_v % 8
        and k.shape[2] != 1
        and not (a.dropout and q.shape[2] == 1)
        and _last_stride_is_one(a)
        and (_heads_ok(a))
    )


_CAN_USE = {"flash": _can_use_flash, "efficient": _can_use_efficient, "cudnn": _can_use_cudnn}


# -- the kernels --------------------------------------------------------------------------------------------


def _flash(a: Attention, scale: float | None) -> Tensor:
    head = a.query.shape[-1]
    scale = scale if scale is not None else head**-0.5
    q, k, v = (_pad_head(t) for t in (a.query, a.key, a.value))
    out = aten._scaled_dot_product_flash_attention(q, k, v, a.dropout, a.is_causal, False, scale=scale)[0]
    return out if out.shape[-1] == head else out[..., :head]


def _pad_head(t: Tensor) -> Tensor:
    rest = -t.shape[-1] % 8
    return t if rest == 0 else F.pad(t, (0, rest))


def _efficient(a: Attention, scale: float | None) -> Tensor:
    bias = _additive_mask(a)
    if bias is not None:
        bias = _aligned_mask(bias, a)
    keep = a.needs_grad or (bias is not None and bias.requires_grad)
    return aten._scaled_dot_product_efficient_attention(
        a.query, a.key, a.value, bias, keep, a.dropout, a.is_causal, scale=scale
    )[0]


def _cudnn(a: Attention, scale: float | None) -> Tensor:
    bias = _additive_mask(a)
    if bias is not None:
        bias = bias.expand(a.query.shape[0], a.query.shape[1], a.query.shape[2], a.key.shape[2])
    return aten._scaled_dot_product_cudnn_attention(
        a.query, a.key, a.value, bias, a.needs_grad, a.dropout, a.is_causal, False, scale=scale
    )[0]


def _fused(a: Attention, scale: float | None) -> Tensor:
    bias = _additive_mask(a)
    return aten._scaled_dot_product_fused_attention_overrideable(
        a.query, a.key, a.value, bias, a.dropout, a.is_causal, scale=scale
    )[0]


def _cpu_flash(a: Attention, scale: float | None) -> Tensor:
    mask = _additive_mask(a)
    return aten._scaled_dot_product_flash_attention_for_cpu(
        a.query, a.key, a.value, a.dropout, a.is_causal, attn_mask=mask, scale=scale
    )[0]


def _math(a: Attention, scale: float | None) -> Tensor:
    return aten._scaled_dot_product_attention_math(
        a.query,
        a.key,
        a.value,
        _additive_mask(a),
        a.dropout,
        a.is_causal,
        None,
        scale=scale,
        enable_gqa=a.is_grouped,
    )[0]


def _additive_mask(a: Attention) -> Tensor | None:
    """A boolean mask becomes a tensor of zeros and minus infinity, as torch's own code makes it."""
    if a.mask is None or a.mask.dtype is not torch.bool:
        return a.mask
    return torch.where(
        a.mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=a.query.dtype, device=a.mask.device)
    )


def _aligned_mask(mask: Tensor, a: Attention) -> Tensor:
    """Efficient attention needs rows of the mask aligned to 16 elements."""
    last = mask.shape[-1]
    if last % 16:
        mask = F.pad(mask, (0, 16 - last % 16))[..., :last]
    return mask.expand(a.query.shape[0], a.query.shape[1], a.query.shape[2], a.key.shape[2])


_KERNELS = {
    "flash": _flash,
    "efficient": _efficient,
    "cudnn": _cudnn,
    "fused": _fused,
    "cpu_flash": _cpu_flash,
    "math": _math,
}
