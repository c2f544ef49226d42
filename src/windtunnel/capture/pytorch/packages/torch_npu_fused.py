"""Smaller fused operators of `torch_npu`: softmax with a mask, activations, transposes, casts, optimizers.

torch_npu.npu_scaled_masked_softmax(x, mask, scale) ──> keeps its result and the mask
torch_npu.npu_apply_adam_w(…, out=(var, m, v))      ──> writes over var, m and v, and allocates nothing
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.define_operator import define, differentiate

__all__ = ["fused_functions", "matmul_add_functions", "optimizer_functions", "ring_functions"]

Tensor = torch.Tensor
_NPU, _MINDSPEED = "npu", "mindspeed"


def fused_functions() -> dict[str, Any]:
    """Name -> function, as users find them in `torch_npu`."""
    return {
        **_masked_softmax(),
        **_activation("npu_gelu", ", str approximate='none'"),
        **_activation("npu_fast_gelu"),
        **_activation("npu_silu", keeps_result=True),
        **_confusion_transpose(),
        **_adam_w(),
        **_formats(),
    }


def _masked_softmax() -> dict[str, Any]:
    name = "npu_scaled_masked_softmax"
    forward = define(
        _NPU,
        f"{name}(Tensor x, Tensor mask, Scalar scale=1, bool fixed_triu_mask=False) -> Tensor",
        lambda x, mask, scale=1, fixed_triu_mask=False: x.new_empty(x.shape),
    )
    backward = define(
        _NPU,
        f"{name}_backward(Tensor y_grad, Tensor y, Tensor mask, Scalar scale, bool fixed_triu_mask) -> Tensor",
        lambda grad, y, mask, scale, fixed_triu_mask: grad.new_empty(grad.shape),
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.options = inputs[2:]
        ctx.save_for_backward(output, inputs[1])

    def soften(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        found = None if grad is None else backward(grad, *ctx.saved_tensors, *ctx.options)
        return found, None, None, None

    differentiate(_NPU, name, save, soften)
    return {name: forward, f"{name}_backward": backward}


def _activation(name: str, options: str = "", keeps_result: bool = False) -> dict[str, Any]:
    """One tensor in, one of its shape out; backward needs the input, and for some the result too."""
    forward = define(
        _NPU, f"{name}(Tensor self{options}) -> Tensor", lambda x, *_, **__: x.new_empty(x.shape)
    )
    kept = "Tensor self, Tensor result" if keeps_result else "Tensor self"
    backward = define(
        _NPU,
        f"{name}_backward(Tensor grad_output, {kept}{options}) -> Tensor",
        lambda grad, x, *_, **__: x.new_empty(x.shape),
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.options = inputs[1:]
        ctx.save_for_backward(inputs[0], *((output,) if keeps_result else ()))

    def differentiate_it(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        found = None if grad is None else backward(grad, *ctx.saved_tensors, *ctx.options)
        return found, *(None for _ in ctx.options)

    differentiate(_NPU, name, save, differentiate_it)
    return {name: forward, f"{name}_backward": backward}


def _confusion_transpose() -> dict[str, Any]:
    """A transpose and a reshape in one kernel; its gradient needs no tensor."""
    name = "npu_confusion_transpose"
    forward = define(
        _NPU,
        f"{name}(Tensor self, int[] perm, int[] shape, bool transpose_first) -> Tensor",
        lambda x, perm, shape, transpose_first: x.new_empty(
            torch.empty(x.shape, device="meta").permute(tuple(perm)).reshape(tuple(shape)).shape
            if transpose_first
            else torch.empty(tuple(shape), device="meta").permute(tuple(perm)).shape
        ),
    )
    backward = define(
        _NPU,
        f"{name}_backward(Tensor grad, int[] perm, int[] shape, bool transpose_first) -> Tensor",
        lambda grad, perm, shape, transpose_first: grad.new_empty(tuple(shape)),
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.perm, ctx.shape, ctx.is_transposed_first = inputs[1], tuple(inputs[0].shape), not inputs[3]

    def turn_back(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        found = None if grad is None else backward(grad, ctx.perm, ctx.shape, ctx.is_transposed_first)
        return found, None, None, None

    differentiate(_NPU, name, save, turn_back)
    return {name: forward, f"{name}_backward": backward}


def _adam_w() -> dict[str, Any]:
    update = define(
        _NPU,
        "npu_apply_adam_w_(Tensor(a!) var, Tensor(b!) m, Tensor(c!) v, Tensor grad, Scalar[] settings,"
        " Tensor? max_grad_norm=None, bool? amsgrad=None, bool? maximize=None) -> ()",
        lambda *_, **__: None,
    )

    def npu_apply_adam_w(
        beta1_power: float,
        beta2_power: float,
        lr: float,
        weight_decay: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        grad: Tensor,
        max_grad_norm: Tensor | None = None,
        amsgrad: bool | None = None,
        maximize: bool | None = None,
        *,
        out: tuple[Tensor, Tensor, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        settings = [float(n) for n in (beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon)]
        update(*out, grad, settings, max_grad_norm, amsgrad, maximize)
        return out

    return {"npu_apply_adam_w": npu_apply_adam_w}


def _formats() -> dict[str, Any]:
    """A dry run has one layout of memory, ND; private layouts of the chip are not simulated."""
    nd = 2
    return {
        "get_npu_format": lambda tensor: nd,
        "npu_format_cast": lambda tensor, acl_format: tensor,
        "npu_format_cast_": lambda tensor, acl_format: tensor,
        "npu_dtype_cast": lambda tensor, dtype: tensor.to(dtype),
        "npu_transpose": lambda tensor, perm, require_contiguous=True: (
            tensor.permute(tuple(perm)).contiguous() if require_contiguous else tensor.permute(tuple(perm))
        ),
    }


# -- extensions of MindSpeed ----------------------------------------------------------------------------------


def matmul_add_functions() -> dict[str, Any]:
    """A weight gradient added to an fp32 buffer in the kernel that computes it."""
    return {
        "npu_matmul_add_fp32": define(
            _MINDSPEED,
            "npu_matmul_add_fp32(Tensor x, Tensor weight, Tensor(a!) C) -> ()",
            lambda x, weight, C: None,
        )
    }


def ring_functions() -> dict[str, Any]:
    """Two parts of a ring attention become one: three new tensors, and no gradient."""
    op = define(
        _MINDSPEED,
        "npu_ring_attention_update(Tensor prev_attn_out, Tensor prev_softmax_max, Tensor prev_softmax_sum,"
        " Tensor cur_attn_out, Tensor cur_softmax_max, Tensor cur_softmax_sum, Tensor? actual_seq_qlen=None,"
        " str layout='SBH') -> (Tensor, Tensor, Tensor)",
        lambda out, maxima, sums, *rest, **_: tuple(t.new_empty(t.shape) for t in (out, maxima, sums)),
    )
    return {"npu_ring_attention_update": op}


def optimizer_functions() -> dict[str, Any]:
    """AdamW in one kernel: parameters and states are written in place."""
    update = define(
        _MINDSPEED,
        "apply_adamw_(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq,"
        " Tensor(d!)? max_exp_avg_sq, Tensor step, Scalar[] settings, bool amsgrad, bool maximize) -> ()",
        lambda *_, **__: None,
    )

    def npu_apply_fused_adamw_v2(
        param: Tensor,
        grad: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        max_exp_avg_sq: Tensor | None,
        state_step: Tensor,
        lr: float,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
    ) -> None:
        settings = [float(n) for n in (lr, beta1, beta2, weight_decay, eps)]
        largest = max_exp_avg_sq if amsgrad else None
        update(
            param,
            grad,
            exp_avg,
            exp_avg_sq,
            largest,
            state_step.sub(1),
            settings,
            bool(amsgrad),
            bool(maximize),
        )

    return {"npu_apply_fused_adamw_v2": npu_apply_fused_adamw_v2}
