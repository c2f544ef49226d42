"""MindSpeed's own rotary kernel, which torch_npu does not have, and its way to let two tensors share memory.

    mindspeed.ops.npu_rotary_position_embedding(x, cos, sin, mode) ──> operator of that name; keeps cos and sin
    reuse_data_ptr(des, src, offset)                               ──> the memory of des is freed: it lies in src

The rotary kernel keeps what it rotated only if cos and sin need gradients, where torch_npu's npu_rotary_mul keeps it always.
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.define_operator import define, differentiate

__all__ = ["algorithm_functions", "mindspeed_modules", "rotary_functions"]

Tensor = torch.Tensor
_NAME = "npu_rotary_position_embedding"


def mindspeed_modules() -> dict[str, dict[str, Any]]:
    """The one module a script imports, with the function of its name."""
    return {"mindspeed": {}, "mindspeed.ops": {}, f"mindspeed.ops.{_NAME}": rotary_functions("mindspeed")}


def rotary_functions(package: str = "") -> dict[str, Any]:
    """The rotary kernel, for the module above, whose package is missing, and for MindSpeed's own builder."""
    forward = define(
        "mindspeed",
        f"{_NAME}(Tensor x, Tensor cos, Tensor sin, int mode=0) -> Tensor",
        _rotated_shape,
        package=package,
    )
    backward = define(
        "mindspeed",
        f"{_NAME}_backward(Tensor dy, Tensor? x, Tensor cos, Tensor sin, int mode=0) -> (Tensor, Tensor, Tensor)",
        _gradient_shapes,
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, cos, sin, ctx.mode = inputs
        ctx.save_for_backward(x if cos.requires_grad and sin.requires_grad else None, cos, sin)

    def rotate_back(ctx: Any, dy: Tensor | None) -> tuple[Any, ...]:
        if dy is None:
            return None, None, None, None
        x, cos, sin = ctx.saved_tensors
        d_x, d_cos, d_sin = backward(dy, x, cos, sin, ctx.mode)
        return d_x, *((d_cos, d_sin) if x is not None else (None, None)), None

    differentiate("mindspeed", _NAME, save, rotate_back)
    return {_NAME: forward}


def _rotated_shape(x: Tensor, cos: Tensor, sin: Tensor, mode: int = 0) -> Tensor:
    for name, tensor in (("x", x), ("cos", cos), ("sin", sin)):
        if tensor.dim() != 4:
            raise RuntimeError(f"{_NAME}: {name} must have 4 dimensions, got {tensor.dim()}")
    return x.new_empty(x.shape)


def _gradient_shapes(
    dy: Tensor, x: Tensor | None, cos: Tensor, sin: Tensor, mode: int = 0
) -> tuple[Tensor, ...]:
    shape = (0,) if x is None else cos.shape
    return dy.new_empty(dy.shape), cos.new_empty(shape), sin.new_empty(shape)


def algorithm_functions() -> dict[str, Any]:
    """The extension `algorithm`: a tensor gives up its own memory for a part of another's."""

    def reuse_data_ptr(des: Tensor, src: Tensor, offset: int) -> None:
        size = des.element_size()
        end, available = (offset + des.numel()) * size, src.numel() * src.element_size()
        if offset < 0 or end > available:
            raise RuntimeError(
                f"reuse_data_ptr: bytes {offset * size:,} to {end:,} are not in a tensor of {available:,} bytes"
            )
        des.untyped_storage().resize_(0)

    return {"reuse_data_ptr": reuse_data_ptr}
