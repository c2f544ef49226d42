"""Raise for mixed types where a device's kernels do and torch's meta kernels do not.

    mm(bf16, float32) ──> the error torch raises on the device

Checked once per signature, before it is in the memo.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["check_attention", "check_types"]

Tensor = torch.Tensor
# operator -> positions of the arguments whose types must agree
_SAME_TYPE: dict[str, tuple[int, ...]] = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
    "aten::addbmm": (1, 2),
    "aten::mv": (0, 1),
    "aten::addmv": (1, 2),
    "aten::dot": (0, 1),
}
_CONVOLUTIONS = frozenset({"aten::convolution", "aten::_convolution"})
_NAMES = {
    torch.float32: "Float", torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float64: "Double",
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}  # fmt: skip


def check_types(op: Any, args: tuple[Any, ...]) -> None:
    """Raise what the device would raise for these argument types."""
    name = op._schema.name
    positions = _SAME_TYPE.get(name)
    if positions is not None:
        a, b = (args[i] for i in positions)
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype != b.dtype:
            raise RuntimeError(f"mat1 and mat2 must have the same dtype, but got {_name(a)} and {_name(b)}")
    elif name in _CONVOLUTIONS:
        _check_convolution(args)
    elif name in ("aten::nll_loss_forward", "aten::nll_loss2d_forward") and args[1].dtype not in (
        torch.int64,
        torch.uint8,
    ):
        raise RuntimeError(
            f"expected scalar type Long but found {_name(args[1])}: labels of cross_entropy must be int64"
        )
    elif name == "aten::embedding" and args[1].dtype not in (torch.int64, torch.int32):
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got"
            f" {_name(args[1])} instead (while checking arguments for embedding)"
        )


def _check_convolution(args: tuple[Any, ...]) -> None:
    source, weight, bias = args[:3]
    if source.dtype != weight.dtype:
        raise RuntimeError(
            f"Input type ({_name(source)}) and weight type ({_name(weight)}) should be the same"
        )
    if bias is not None and source.dtype != bias.dtype:
        raise RuntimeError(f"Input type ({_name(source)}) and bias type ({_name(bias)}) should be the same")
    is_transposed, groups = bool(args[6]), args[8]
    wanted = weight.shape[0] if is_transposed else weight.shape[1] * groups
    if source.dim() == weight.dim() and source.shape[1] != wanted:
        raise RuntimeError(
            f"Given {'transposed=1' if is_transposed else f'groups={groups}'}, weight of size {list(weight.shape)}, expected"
            f" input{list(source.shape)} to have {wanted} channels, but got {source.shape[1]} channels instead"
        )


def check_attention(query: Tensor, key: Tensor, value: Tensor) -> None:
    """What torch checks before it chooses an attention kernel."""
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype:"
            f" {_name(query)} key.dtype: {_name(key)} and value.dtype: {_name(value)} instead."
        )


def _name(t: Tensor) -> str:
    return _NAMES.get(t.dtype, str(t.dtype))
