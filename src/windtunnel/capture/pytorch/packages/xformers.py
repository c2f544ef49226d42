"""Simulate `xformers.ops.memory_efficient_attention` where xFormers is not installed: it hands over to two kernels.

fp16 and bf16, with no mask or one it knows ──> FlashAttention-2 (flash_attn.py)
fp32, or a tensor added to the scores       ──> torch's memory-efficient attention
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.define_operator import announce
from windtunnel.capture.pytorch.packages.flash_attn import (
    flash_attn_func,
    flash_attn_modules,
    flash_attn_varlen_func,
)

__all__ = ["answer_build", "xformers_modules"]

Tensor = torch.Tensor
_WIDEST = 256  # head of FlashAttention
_HALF = (torch.float16, torch.bfloat16)


class AttentionBias:
    """Which scores count; `is_causal` of each sequence for itself."""

    is_causal = False


class LowerTriangularMask(AttentionBias):
    is_causal = True

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def add_bias(self, bias: Tensor) -> LowerTriangularMaskWithTensorBias:
        return LowerTriangularMaskWithTensorBias(bias)


class LowerTriangularFromBottomRightMask(AttentionBias):
    is_causal = True


class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    def __init__(self, bias: Tensor) -> None:
        self.bias = bias


class BlockDiagonalMask(AttentionBias):
    """Sequences one after the other in one row of the batch."""

    def __init__(self, q_lengths: Sequence[int], kv_lengths: Sequence[int]) -> None:
        self.q_lengths, self.kv_lengths = list(q_lengths), list(kv_lengths)

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, **_: Any
    ) -> BlockDiagonalMask:
        return cls(q_seqlen, kv_seqlen or q_seqlen)

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[Tensor]) -> tuple[BlockDiagonalMask, Tensor]:
        lengths = [length for t in tensors for length in [t.shape[1]] * t.shape[0]]
        joined = torch.cat([t.reshape(1, -1, *t.shape[2:]) for t in tensors], dim=1)
        mask = cls.from_seqlens(lengths)
        mask.batches = [t.shape[0] for t in tensors]
        return mask, joined

    batches: Sequence[int] | None = None

    def split(self, tensor: Tensor) -> list[Tensor]:
        parts = iter(tensor.split(self.q_lengths, dim=1))
        batches = self.batches or [1] * len(self.q_lengths)
        return [torch.cat([next(parts) for _ in range(n)]) for n in batches]

    def make_causal(self) -> BlockDiagonalCausalMask:
        return BlockDiagonalCausalMask(self.q_lengths, self.kv_lengths)

    def starts(self, device: torch.device) -> list[Tensor]:
        """Where sequences begin, of queries and of keys."""
        both = ([0, *accumulate(self.q_lengths)], [0, *accumulate(self.kv_lengths)])
        return [torch.tensor(each, dtype=torch.int32, device=device) for each in both]


class BlockDiagonalCausalMask(BlockDiagonalMask):
    is_causal = True


class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalCausalMask):
    pass


def memory_efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Any = None, p: float = 0.0, scale: float | None = None, *,
    op: Any = None, output_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Inputs of shape [batch, length, heads, width], or [batch, length, width] with one head."""
    announce("xformers is not installed here: its kernels were simulated")
    if attn_bias is not None and not isinstance(attn_bias, (Tensor, AttentionBias)):
        raise NotImplementedError(f"{type(attn_bias).__name__} is not simulated")
    if query.dim() == 3:
        bias = attn_bias.unsqueeze(1) if isinstance(attn_bias, Tensor) and attn_bias.dim() == 3 else attn_bias
        q, k, v = (t.unsqueeze(2) for t in (query, key, value))
        return memory_efficient_attention(q, k, v, bias, p, scale, output_dtype=output_dtype).squeeze(2)
    if query.dim() == 5:  # heads in groups that share keys
        q, k, v = (t.flatten(2, 3) for t in (query, key, value))
        out = memory_efficient_attention(q, k, v, attn_bias, p, scale, output_dtype=output_dtype)
        return out.unflatten(2, query.shape[2:4])
    is_flash = query.dtype in _HALF and query.shape[-1] <= _WIDEST and not _tensor_of(attn_bias)
    out = (_flash if is_flash else _efficient)(query, key, value, attn_bias, p, scale)
    return out if output_dtype is None else out.to(output_dtype)


def _tensor_of(bias: Any) -> list[Tensor]:
    found = getattr(bias, "bias", bias)
    return [found] if isinstance(found, Tensor) else []


def _flash(q: Tensor, k: Tensor, v: Tensor, bias: Any, p: float, scale: float | None) -> Tensor:
    causal = bias is not None and bias.is_causal
    if not isinstance(bias, BlockDiagonalMask):
        found: Tensor = flash_attn_func(q, k, v, p, scale, causal)
        return found
    starts_q, starts_k = bias.starts(q.device)
    rows_q, rows_k, rows_v = (t.reshape(-1, *t.shape[2:]) for t in (q, k, v))
    longest = max(bias.q_lengths), max(bias.kv_lengths)
    packed: Tensor = flash_attn_varlen_func(
        rows_q, rows_k, rows_v, starts_q, starts_k, *longest, p, scale, causal
    )
    return packed.view(*q.shape[:-1], v.shape[-1])


def _efficient(q: Tensor, k: Tensor, v: Tensor, bias: Any, p: float, scale: float | None) -> Tensor:
    if isinstance(bias, BlockDiagonalMask):
        raise NotImplementedError("xformers' block-diagonal masks are simulated for fp16 and bf16 only")
    heads = (t.transpose(1, 2) for t in (q, k, v))
    added = next(iter(_tensor_of(bias)), None)
    causal = isinstance(bias, AttentionBias) and bias.is_causal
    needs_rows = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    out, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        *heads, added, needs_rows, p, causal, scale=scale
    )
    result: Tensor = out.transpose(1, 2)
    return result


def answer_build(cpp_lib: types.ModuleType) -> None:
    """An installed xFormers without its library still reaches FlashAttention and torch's own kernels, if it may."""
    cpp_lib._built_with_cuda = True  # type: ignore[attr-defined]


def xformers_modules() -> dict[str, dict[str, Any]]:
    flash_attn_modules()  # defines its operators
    masks = {
        each.__name__: each
        for each in (
            AttentionBias, LowerTriangularMask, LowerTriangularFromBottomRightMask, LowerTriangularMaskWithTensorBias,
            BlockDiagonalMask, BlockDiagonalCausalMask, BlockDiagonalCausalFromBottomRightMask,
        )
    }  # fmt: skip
    operators = dict.fromkeys(
        (
            "MemoryEfficientAttentionFlashAttentionOp",
            "MemoryEfficientAttentionCutlassOp",
            "MemoryEfficientAttentionOp",
        )
    )
    functions = {"memory_efficient_attention": memory_efficient_attention, **operators}
    return {
        "xformers": {},
        "xformers.ops": {
            **functions,
            "AttentionBias": AttentionBias,
            "LowerTriangularMask": LowerTriangularMask,
        },
        "xformers.ops.fmha": {**functions, **masks},
        "xformers.ops.fmha.attn_bias": masks,
    }
