"""Simulate the fused operators of `torch_npu`, with their results and saved tensors.

    torch_npu.npu_fusion_attention(q, k, v, …) ──> torch.ops.npu.npu_fusion_attention ──> operator of that name
                                                        └─ keeps q, k, v, masks, out, softmax max and sum

What each kernel keeps for backward and what its gradient allocates follows the operator library that torch_npu is
generated from: a formula shared by several inputs keeps all its tensors, whichever of them need a gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.define_operator import define, differentiate
from windtunnel.capture.pytorch.packages.torch_npu_experts import expert_functions
from windtunnel.capture.pytorch.packages.torch_npu_fused import fused_functions

__all__ = ["npu_functions"]

Tensor = torch.Tensor
_NPU = "npu"
_LAST = 8  # softmax max and sum are kept eight wide
_LAYOUTS = {"BSH": "bsh", "SBH": "sbh", "BNSD": "bnsd", "BSND": "bsnd", "TND": "tnd"}


def npu_functions() -> dict[str, Any]:
    """Name -> function, as users find them in `torch_npu` (and in `torch.ops.npu`)."""
    return {
        **_attention_functions(),
        **_norm_functions(),
        **_rotary_functions(),
        **_activation_functions(),
        **expert_functions(),
        **fused_functions(),
    }


# -- attention ----------------------------------------------------------------------------------------------

_OPTIONS = (
    "int head_num, str input_layout, {star}Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, {saved}"
    "float {scale}=1., float keep_prob=1., int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0,"
    "{seeds} int[]? prefix=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0,"
    " bool gen_mask_parallel=True, bool sync=False"
)


def _attention_functions() -> dict[str, Any]:
    options = _OPTIONS.format(star="", saved="", scale="scale", seeds="")
    saved = _OPTIONS.format(
        star="*, ",
        saved="Tensor? softmax_max=None, Tensor? softmax_sum=None, Tensor? softmax_in=None, Tensor? attention_in=None, ",
        scale="scale_value",
        seeds=" int seed=0, int offset=0, int numels=0,",
    )
    forward = define(
        _NPU,
        f"npu_fusion_attention(Tensor query, Tensor key, Tensor value, {options})"
        " -> (Tensor, Tensor, Tensor, Tensor, int, int, int)",
        _attention_shapes,
        scratch=_dropout_mask_of_forward,
    )
    define(
        _NPU,
        f"npu_fusion_attention_grad(Tensor query, Tensor key, Tensor value, Tensor dy, {saved})"
        " -> (Tensor, Tensor, Tensor, Tensor)",
        _attention_gradient_shapes,
        scratch=_dropout_mask_of_backward,
    )
    differentiate(_NPU, "npu_fusion_attention", _save_attention, _attend_backward)
    return {
        "npu_fusion_attention": forward,
        "npu_fusion_attention_grad": torch.ops.npu.npu_fusion_attention_grad,
    }


def _sizes(query: Tensor, key: Tensor, head_num: int, layout: str) -> tuple[int, int, int, int]:
    """Batch, heads, query length and key length; of TND, where sequences are packed, batch is 1."""
    if layout not in _LAYOUTS or query.dim() != len(layout):
        raise RuntimeError(
            f"npu_fusion_attention: layout {layout} does not describe a query of shape {tuple(query.shape)};"
            " use BSH, SBH, BNSD, BSND or TND"
        )
    if layout == "TND":
        return 1, query.shape[1], query.shape[0], key.shape[0]
    sizes, keys = dict(zip(layout, query.shape, strict=True)), dict(zip(layout, key.shape, strict=True))
    heads = sizes.get("N", head_num)
    if heads != head_num:
        raise RuntimeError(f"npu_fusion_attention: head_num is {head_num}, the query has {heads} heads")
    return sizes["B"], heads, sizes["S"], keys["S"]


def _attention_shapes(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, *rest: Any, **options: Any
) -> tuple[Any, ...]:
    batch, heads, length, n_keys = _sizes(query, key, head_num, input_layout)
    rows = (length, heads, _LAST) if input_layout == "TND" else (batch, heads, length, _LAST)
    out_shape = (*query.shape[:-1], _value_width(query, key, value, head_num, input_layout))
    softmax = [query.new_empty(rows, dtype=torch.float32) for _ in range(2)]
    return query.new_empty(out_shape), *softmax, query.new_empty((0,)), 0, 0, batch * heads * length * n_keys


def _value_width(query: Tensor, key: Tensor, value: Tensor, head_num: int, layout: str) -> int:
    """Width of the result's last dimension: value heads may be narrower than query heads."""
    if layout not in ("BSH", "SBH"):
        return value.shape[-1]
    n_groups = key.shape[-1] // (query.shape[-1] // head_num)
    return value.shape[-1] // n_groups * head_num


def _attention_gradient_shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, ...]:
    d_pse = query.new_empty((0,)) if pse is None else pse.new_empty(pse.shape)
    return *(t.new_empty(t.shape) for t in (query, key, value)), d_pse


def _dropout_mask_of_forward(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, *rest: Any, **options: Any
) -> list[int]:
    batch, heads, length, n_keys = _sizes(query, key, head_num, input_layout)
    keep_prob = options.get("keep_prob", rest[4] if len(rest) > 4 else 1.0)
    return _mask_bytes(keep_prob, batch * heads * length * n_keys)


def _dropout_mask_of_backward(
    *args: Any, keep_prob: float = 1.0, numels: int = 0, **options: Any
) -> list[int]:
    return _mask_bytes(keep_prob, numels)


def _mask_bytes(keep_prob: float, numels: int) -> list[int]:
    """One bit per score, created before the kernel and again before its gradient; none without dropout."""
    if keep_prob >= 1.0:
        return []
    return [(numels + 127) // 128 * 128 // 8]


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    query, key, value, ctx.head_num, ctx.layout, pse, padding_mask, atten_mask, ctx.scale, ctx.keep_prob = (
        inputs[:10]
    )
    ctx.numels = output[6]
    ctx.options = {
        "pre_tockens": inputs[10],
        "next_tockens": inputs[11],
        "inner_precise": inputs[12],
        "prefix": inputs[13],
        "actual_seq_qlen": inputs[14],
        "actual_seq_kvlen": inputs[15],
        "sparse_mode": inputs[16],
    }
    ctx.save_for_backward(
        query, key, value, pse, padding_mask, atten_mask, output[1], output[2], output[3], output[0]
    )


def _attend_backward(ctx: Any, dy: Tensor | None, *unused: Any) -> tuple[Any, ...]:
    nothing = (None,) * 14
    if dy is None:
        return (None, None, None, None, None, None, *nothing[1:])
    query, key, value, pse, padding_mask, atten_mask, maxima, sums, softmax_in, out = ctx.saved_tensors
    dq, dk, dv, d_pse = torch.ops.npu.npu_fusion_attention_grad(
        query,
        key,
        value,
        dy,
        ctx.head_num,
        ctx.layout,
        pse=pse,
        padding_mask=padding_mask,
        atten_mask=atten_mask,
        softmax_max=maxima,
        softmax_sum=sums,
        softmax_in=softmax_in,
        attention_in=out,
        scale_value=ctx.scale,
        keep_prob=ctx.keep_prob,
        numels=ctx.numels,
        **ctx.options,
    )
    return (dq, dk, dv, None, None, d_pse if pse is not None else None, *nothing[1:])


# -- norms --------------------------------------------------------------------------------------------------


def _norm_functions() -> dict[str, Any]:
    forward = define(
        _NPU,
        "npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
        lambda x, gamma, epsilon=1e-6: (x.new_empty(x.shape), _rstd(x, gamma)),
    )
    backward = define(
        _NPU,
        "npu_rms_norm_backward(Tensor dy, Tensor self, Tensor gamma, Tensor rstd) -> (Tensor, Tensor)",
        lambda dy, x, gamma, rstd: (x.new_empty(x.shape), gamma.new_empty(gamma.shape, dtype=torch.float32)),
    )
    added = define(
        _NPU,
        "npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)",
        lambda x1, x2, gamma, epsilon=1e-6: (
            x1.new_empty(x1.shape),
            _rstd(x1, gamma),
            x1.new_empty(x1.shape),
        ),
    )  # without a gradient, as in torch_npu

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], inputs[1], output[1])

    def differentiate_norm(ctx: Any, dy: Tensor | None, _: Any) -> tuple[Any, ...]:
        if dy is None:
            return None, None, None
        return (*backward(dy, *ctx.saved_tensors), None)

    differentiate(_NPU, "npu_rms_norm", save, differentiate_norm)
    return {"npu_rms_norm": forward, "npu_rms_norm_backward": backward, "npu_add_rms_norm": added}


def _rstd(x: Tensor, gamma: Tensor) -> Tensor:
    """One number per normalised row, in fp32, with ones for the dimensions that were normalised."""
    kept = x.dim() - gamma.dim()
    return x.new_empty((*x.shape[:kept], *(1,) * gamma.dim()), dtype=torch.float32)


# -- rotary embedding ---------------------------------------------------------------------------------------


def _rotary_functions() -> dict[str, Any]:
    forward = define(
        _NPU,
        "npu_rotary_mul(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half') -> Tensor",
        lambda x, r1, r2, rotary_mode="half": x.new_empty(x.shape),
    )
    backward = define(
        _NPU,
        "npu_rotary_mul_backward(Tensor grad, Tensor self, Tensor r1, Tensor r2, str rotary_mode='half')"
        " -> (Tensor, Tensor, Tensor)",
        lambda grad, x, r1, r2, rotary_mode="half": tuple(t.new_empty(t.shape) for t in (grad, r1, r2)),
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mode = inputs[3]
        ctx.save_for_backward(*inputs[:3])  # x too: one formula serves all three gradients

    def differentiate_rotation(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        if grad is None:
            return None, None, None, None
        d_x, d_r1, d_r2 = backward(grad, *ctx.saved_tensors, ctx.mode)
        wanted = ctx.needs_input_grad
        return d_x, d_r1 if wanted[1] else None, d_r2 if wanted[2] else None, None

    differentiate(_NPU, "npu_rotary_mul", save, differentiate_rotation)
    return {"npu_rotary_mul": forward, "npu_rotary_mul_backward": backward}


# -- activation ---------------------------------------------------------------------------------------------


def _activation_functions() -> dict[str, Any]:
    forward = define(_NPU, "npu_swiglu(Tensor self, int dim=-1) -> Tensor", _half)
    backward = define(
        _NPU,
        "npu_swiglu_backward(Tensor grad_output, Tensor self, int dim=-1) -> Tensor",
        lambda grad, x, dim=-1: x.new_empty(x.shape),
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.dim = inputs[1]
        ctx.save_for_backward(inputs[0])

    def differentiate_swiglu(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        return (None if grad is None else backward(grad, *ctx.saved_tensors, ctx.dim)), None

    differentiate(_NPU, "npu_swiglu", save, differentiate_swiglu)
    return {"npu_swiglu": forward, "npu_swiglu_backward": backward}


def _half(x: Tensor, dim: int = -1) -> Tensor:
    if x.shape[dim] % 2:
        raise RuntimeError(
            f"npu_swiglu: dimension {dim} of {tuple(x.shape)} is split in two halves, but its size is odd"
        )
    shape = list(x.shape)
    shape[dim] //= 2
    return x.new_empty(shape)
