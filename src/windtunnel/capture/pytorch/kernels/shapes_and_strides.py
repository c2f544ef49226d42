"""Shapes and strides where torch's meta kernels are missing, or differ from an accelerator.

    rule(op, *args, **kwargs) on meta tensors ──> what the device's kernel returns

Everything else comes from torch's own meta kernels (shape_inference.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

__all__ = ["returns_nothing_new", "shape_rules"]

Tensor = torch.Tensor
shape_rules: dict[str, Callable[..., Any]] = {}  # "aten::flip" -> rule
_empty = torch.empty  # torch's own, before constructors are replaced


def _rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        shape_rules.update({f"aten::{name}": function for name in names})
        return function

    return register


def returns_nothing_new(op: Any) -> bool:
    """Whether an operator only writes to its arguments: then its results need no shape rule."""
    return all(r.alias_info is not None and r.alias_info.is_write for r in op._schema.returns)


@_rule("convolution", "_convolution")
def _convolution(op: Any, source: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """cuDNN keeps channels last if the input or the weight is channels last; the meta kernel does not."""
    made = op(source, weight, *args, **kwargs)
    wanted = {suggest_memory_format(t) for t in (source, weight) if t.dim() in (4, 5)}
    for memory_format in (torch.channels_last, torch.channels_last_3d):
        if memory_format in wanted:
            return _empty(made.shape, dtype=made.dtype, device="meta", memory_format=memory_format)
    return made


@_rule("flip")
def _flip(op: Any, source: Tensor, dims: Any) -> Tensor:
    op(source, dims)  # raises for wrong dimensions
    return torch.empty_like(source)


@_rule("_standard_gamma", "_transformer_encoder_layer_fwd")
def _like_the_first(op: Any, source: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """torch 2.12 has no meta kernel for these; those of later versions return the same."""
    return torch.empty_like(source)


@_rule("_thnn_fused_gru_cell")
def _gru_cell(
    op: Any, input_gates: Tensor, hidden_gates: Tensor, hidden: Tensor, *biases: Any
) -> tuple[Tensor, Tensor]:
    n, size = hidden.shape
    return torch.empty_like(hidden, memory_format=torch.contiguous_format), hidden.new_empty((n, 5 * size))


@_rule("_thnn_fused_gru_cell_backward")
def _gru_cell_backward(op: Any, grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Any, ...]:
    n, size = grad.shape
    gates = [grad.new_empty((n, 3 * size)) for _ in range(2)]
    biases = [grad.new_empty((3 * size,)) for _ in range(2)] if has_bias else [None, None]
    return (*gates, grad.new_empty((n, size)), *biases)


def _boxes_kept(op: Any, boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """How many boxes remain depends on values: all of them, the largest result."""
    return boxes.new_empty((boxes.shape[0],), dtype=torch.int64)


shape_rules["torchvision::nms"] = _boxes_kept  # its fake wants torch's FakeTensorMode

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}  # statistics of half precision


def _per_channel(source: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return source.new_empty((source.shape[1],), dtype=dtype or _WIDE.get(source.dtype, source.dtype))


@_rule("batch_norm_stats", "batch_norm_gather_stats_with_counts")
def _batch_norm_stats(op: Any, source: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """SyncBatchNorm: mean and inverse deviation of this rank, or of all."""
    return _per_channel(source), _per_channel(source)


@_rule("batch_norm_elemt")
def _batch_norm_elemt(op: Any, source: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return torch.empty_like(source)


@_rule("batch_norm_backward_elemt")
def _batch_norm_backward_elemt(op: Any, grad: Tensor, source: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return torch.empty_like(source)


@_rule("batch_norm_backward_reduce")
def _batch_norm_backward_reduce(
    op: Any, grad: Tensor, source: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None,
    of_input: bool, of_weight: bool, of_bias: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Two sums for the gradient of the input, then the gradients of weight and bias, where they are wanted."""
    dtype = mean.dtype if weight is None else weight.dtype
    sums = [_per_channel(source) if of_input else None for _ in range(2)]
    return (*sums, *(_per_channel(source, dtype) if wanted else None for wanted in (of_weight, of_bias)))


_ROW_COPIES = 8  # Ascend's fused attention keeps each row's maximum and sum this many times


@_rule("_scaled_dot_product_fused_attention_overrideable")
def _fused_attention(
    op: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """Ascend's fused attention: the output, and a float32 maximum and sum per row for backward."""
    batch, heads, rows, _ = query.shape
    row_max, row_sum = (
        query.new_empty((batch, heads, rows, _ROW_COPIES), dtype=torch.float32) for _ in range(2)
    )
    nothing = [query.new_empty((0,), dtype=torch.int64) for _ in range(3)]
    out = (
        torch.empty_like(query)
        if query.shape[-1] == value.shape[-1]
        else query.new_empty((*query.shape[:3], value.shape[-1]))
    )
    return (out, row_max, row_sum, nothing[0], rows, key.shape[2], *nothing[1:], query.new_empty((0,)))


@_rule("_scaled_dot_product_fused_attention_overrideable_backward")
def _fused_attention_backward(
    op: Any,
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Any,
    wanted: Any,
    *args: Any,
    **kwargs: Any,
) -> tuple[Any, ...]:
    return (
        *(torch.empty_like(t) for t in (query, key, value)),
        torch.empty_like(bias) if bias is not None and wanted[3] else None,
    )
