"""Simulate `flash_attn` where it is not installed: the results, saved tensors and scratch of FlashAttention-2.

flash_attn_func(q, k, v) ──> flash_attn._flash_attn_forward ──> out, log-sum-exp per row
                 backward ──> flash_attn._flash_attn_backward ──> dq, dk, dv; while it runs: an fp32 dq, the rows'
                              dot products and, with grouped heads, dk and dv once per query head
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from windtunnel.capture.pytorch.kernels.define_operator import define, differentiate

__all__ = ["FLASH_ATTN_VERSION", "flash_attn_modules"]

Tensor = torch.Tensor
_NAME = "flash_attn"
FLASH_ATTN_VERSION = "2.8.3"
_OPTIONS = (
    "float dropout_p, float softmax_scale, bool causal, int window_size_left=-1, int window_size_right=-1,"
    " float softcap=0.0, Tensor? alibi_slopes=None"
)
_PACKED = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, "


def flash_attn_modules() -> dict[str, dict[str, Any]]:
    """The modules scripts import, with the functions they call."""
    _define("_flash_attn_forward", "_flash_attn_backward", "")
    _define("_flash_attn_varlen_forward", "_flash_attn_varlen_backward", _PACKED)
    functions = {
        "flash_attn_func": flash_attn_func,
        "flash_attn_varlen_func": flash_attn_varlen_func,
        "flash_attn_qkvpacked_func": flash_attn_qkvpacked_func,
        "flash_attn_kvpacked_func": flash_attn_kvpacked_func,
        "flash_attn_with_kvcache": flash_attn_with_kvcache,
    }
    return {
        "flash_attn": {**functions, "__version__": FLASH_ATTN_VERSION},
        "flash_attn.flash_attn_interface": {**functions, "flash_attn_gpu": SimpleNamespace(**_compiled())},
        "flash_attn.bert_padding": {
            "pad_input": pad_input,
            "unpad_input": unpad_input,
            "index_first_axis": index_first_axis,
        },
    }


def _compiled() -> dict[str, Any]:
    """The compiled module's own functions, which xFormers calls instead of the package's."""

    def fwd(q: Tensor, k: Tensor, v: Tensor, out: Any, slopes: Any, p: float, scale: float, causal: bool,
            left: int, right: int, softcap: float, *_: Any) -> Any:  # fmt: skip
        found = torch.ops.flash_attn._flash_attn_forward(
            q, k, v, p, scale, causal, left, right, softcap, slopes
        )
        return found[0], found[1], None, found[2]

    def varlen_fwd(q: Tensor, k: Tensor, v: Tensor, out: Any, starts_q: Tensor, starts_k: Tensor, used: Any, pad: Any,
                   table: Any, slopes: Any, longest_q: int, longest_k: int, p: float, scale: float, zero: bool,
                   causal: bool, left: int, right: int, softcap: float, *_: Any) -> Any:  # fmt: skip
        found = torch.ops.flash_attn._flash_attn_varlen_forward(
            q, k, v, starts_q, starts_k, longest_q, longest_k, p, scale, causal, left, right, softcap, slopes
        )
        return found[0], found[1], None, found[2]

    return {"fwd": fwd, "varlen_fwd": varlen_fwd}


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """q, k, v of shape [batch, length, heads, width]."""
    _check(q, k, v, 4)
    width, scale = q.shape[-1], softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
    out, lse, _ = torch.ops.flash_attn._flash_attn_forward(
        *_padded(q, k, v), dropout_p, scale, causal, *window_size, softcap, alibi_slopes
    )
    out = out if out.shape[-1] == width else out[..., :width]
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False, block_table: Tensor | None = None,
) -> Any:  # fmt: skip
    """q, k, v of shape [tokens, heads, width]: sequences one after the other."""
    _check(q, k, v, 3)
    width, scale = q.shape[-1], softmax_scale if softmax_scale is not None else q.shape[-1] ** -0.5
    out, lse, _ = torch.ops.flash_attn._flash_attn_varlen_forward(
        *_padded(q, k, v), cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), dropout_p, scale, causal,
        *window_size, softcap, alibi_slopes,
    )  # fmt: skip
    out = out if out.shape[-1] == width else out[..., :width]
    return (out, lse, None) if return_attn_probs else out


def flash_attn_qkvpacked_func(qkv: Tensor, *args: Any, **kwargs: Any) -> Any:
    q, k, v = qkv.unbind(dim=2)
    return flash_attn_func(q, k, v, *args, **kwargs)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **kwargs: Any) -> Any:
    k, v = kv.unbind(dim=2)
    return flash_attn_func(q, k, v, *args, **kwargs)


@torch.no_grad()
def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, *_: Any, **options: Any) -> Tensor:
    """Inference: the cache is written in place, only the result is new."""
    _check(q, k_cache, v_cache, 4)
    scale = options.get("softmax_scale") or q.shape[-1] ** -0.5
    causal = bool(options.get("causal", False))
    return torch.ops.flash_attn._flash_attn_forward(q, k_cache, v_cache, 0.0, scale, causal)[0]


# -- padding ------------------------------------------------------------------------------------------------


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    return x.index_select(0, indices)


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Any, ...]:
    """Concatenate the tokens that the mask keeps: tokens, their indices, sequence starts, the longest, lengths."""
    mask = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
    starts = F.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    rows = hidden_states.reshape(-1, *hidden_states.shape[2:])
    return index_first_axis(rows, indices), indices, starts, lengths.max().item(), used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The reverse: zeros where there was padding."""
    out = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
    return out.index_copy(0, indices, hidden_states).view(batch, seqlen, *hidden_states.shape[1:])


def _check(q: Tensor, k: Tensor, v: Tensor, n_dims: int) -> None:
    if any(t.dim() != n_dims for t in (q, k, v)):
        raise RuntimeError(
            f"flash_attn expects tensors of {n_dims} dimensions, got {[t.dim() for t in (q, k, v)]}"
        )
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if q.shape[-2] % k.shape[-2]:
        raise RuntimeError("Number of heads in key/value must divide number of heads in query")
    if q.shape[-1] > 256:
        raise RuntimeError("FlashAttention forward only supports head dimension at most 256")


def _padded(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Pad heads to a multiple of eight, as the package does; the padded tensors are what is saved."""
    rest = -tensors[0].shape[-1] % 8
    return tuple(F.pad(t, (0, rest)) if rest else t for t in tensors)


# -- the operators ------------------------------------------------------------------------------------------


@cache
def _define(forward: str, backward: str, packed: str) -> None:
    n_packed = packed.count(",")
    define(
        _NAME,
        f"{forward}(Tensor q, Tensor k, Tensor v, {packed}{_OPTIONS}) -> (Tensor, Tensor, Tensor)",
        _forward_shapes,
        package=_NAME,
    )
    run_backward = define(
        _NAME,
        f"{backward}(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor rng_state,"
        f" {packed}{_OPTIONS}) -> (Tensor, Tensor, Tensor)",
        lambda dout, q, k, v, *rest: tuple(t.new_empty(t.shape) for t in (q, k, v)),
        scratch=_packed_scratch if packed else _scratch,
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        lengths = inputs[3:5] if packed else ()
        ctx.rest = inputs[3 + len(lengths) :]
        ctx.mark_non_differentiable(output[1], output[2])
        ctx.save_for_backward(*inputs[:3], *output, *lengths)

    def attend_back(ctx: Any, dout: Tensor | None, *unused: Any) -> tuple[Any, ...]:
        nothing = (None,) * (n_packed + 7)
        if dout is None:
            return (None, None, None, *nothing)
        q, k, v, out, lse, state, *lengths = ctx.saved_tensors
        return (*run_backward(dout, q, k, v, out, lse, state, *lengths, *ctx.rest), *nothing)

    differentiate(_NAME, forward, save, attend_back)


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows = (q.shape[0], q.shape[2], q.shape[1]) if q.dim() == 4 else (q.shape[1], q.shape[0])
    lse = q.new_empty(rows, dtype=torch.float32)
    return q.new_empty((*q.shape[:-1], v.shape[-1])), lse, q.new_empty((2,), dtype=torch.int64)


def _scratch(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[int]:
    batch, length, heads, width = q.shape
    rows = _up(length, 128)
    expanded = batch * k.shape[1] * heads * width * q.element_size() if heads != k.shape[2] else 0
    return [batch * heads * rows * 4, batch * rows * heads * _head(width) * 4, expanded, expanded]


def _packed_scratch(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[int]:
    tokens, heads, width = q.shape
    n_sequences = rest[3].shape[0] - 1  # cu_seqlens_q, after out, lse and the random state
    rows = tokens + 128 * n_sequences
    expanded = k.shape[0] * heads * width * q.element_size() if heads != k.shape[1] else 0
    return [heads * rows * 4, rows * heads * _head(width) * 4, expanded, expanded]


def _up(n: int, unit: int) -> int:
    return (n + unit - 1) // unit * unit


def _head(width: int) -> int:
    return _up(width, 32) if width <= 192 else 256
