"""Simulate FlashAttention-3 (`flash_attn_interface`, built from `hopper/`) where it is not installed.

flash_attn_func(q, k, v) ──> flash_attn_3._flash_attn_forward ──> out, log-sum-exp per row; saved: q, k, v and these
                 backward ──> flash_attn_3._flash_attn_backward ──> dq, dk, dv; while it runs: an fp32 dq, two numbers per row
                              and, with grouped heads, fp32 dk and dv
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.define_operator import define, differentiate

__all__ = ["FLASH_ATTN_3_VERSION", "flash_attn_3_modules"]

Tensor = torch.Tensor
_NAME = "flash_attn_3"
FLASH_ATTN_3_VERSION = "3.0.0"
_PACKED = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, "
_OPTIONS = (
    "float dropout_p, float softmax_scale, bool causal, int window_left, int window_right, float softcap"
)
_TYPES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)


def flash_attn_3_modules() -> dict[str, dict[str, Any]]:
    """The module scripts import, under both names it has had."""
    _define("_flash_attn_forward", "_flash_attn_backward", "")
    _define("_flash_attn_varlen_forward", "_flash_attn_varlen_backward", _PACKED)
    functions = {
        "flash_attn_func": flash_attn_func,
        "flash_attn_varlen_func": flash_attn_varlen_func,
        "flash_attn_qkvpacked_func": flash_attn_qkvpacked_func,
        "flash_attn_with_kvcache": flash_attn_with_kvcache,
    }
    return {
        "flash_attn_interface": functions,
        "flash_attn_3": {"__version__": FLASH_ATTN_3_VERSION},
        "flash_attn_3.flash_attn_interface": functions,
    }


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False, qv: Tensor | None = None,
    q_descale: Any = None, k_descale: Any = None, v_descale: Any = None, window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1, pack_gqa: Any = None,
    deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """q, k, v of shape [batch, length, heads, width]."""
    _check(q, k, v, 4)
    scale = _scale(q, qv) if softmax_scale is None else softmax_scale
    out, lse = torch.ops.flash_attn_3._flash_attn_forward(q, k, v, 0.0, scale, causal, *window_size, softcap)
    return (out, lse) if return_attn_probs else out


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    seqused_q: Any = None, seqused_k: Any = None, softmax_scale: float | None = None, causal: bool = False,
    qv: Tensor | None = None, q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
    pack_gqa: Any = None, deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """q, k, v of shape [tokens, heads, width]: sequences one after the other."""
    _check(q, k, v, 3)
    scale = _scale(q, qv) if softmax_scale is None else softmax_scale
    out, lse = torch.ops.flash_attn_3._flash_attn_varlen_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), 0.0, scale, causal, *window_size,
        softcap,
    )  # fmt: skip
    return (out, lse) if return_attn_probs else out


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    *,
    num_heads_q: int | None = None,
    **options: Any,
) -> Any:
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(dim=-3)
    elif num_heads_q is None:
        raise ValueError("num_heads_q is needed for q, k and v in one dimension of heads")
    else:
        n_keys = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, n_keys, n_keys], dim=-2)
    return flash_attn_func(q, k, v, softmax_scale, causal, **options)


@torch.no_grad()
def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, *_: Any, **options: Any) -> Any:
    """Inference: the cache is written in place, only the result is new."""
    scale = options.get("softmax_scale") or _scale(q, options.get("qv"))
    causal = bool(options.get("causal", False))
    found = torch.ops.flash_attn_3._flash_attn_forward(q, k_cache, v_cache, 0.0, scale, causal, -1, -1, 0.0)
    return found if options.get("return_softmax_lse") else found[0]


def _scale(q: Tensor, qv: Tensor | None) -> float:
    return float((q.shape[-1] + (0 if qv is None else qv.shape[-1])) ** -0.5)


def _check(q: Tensor, k: Tensor, v: Tensor, n_dims: int) -> None:
    if any(t.dim() != n_dims for t in (q, k, v)):
        raise RuntimeError(
            f"flash_attn_3 expects tensors of {n_dims} dimensions, got {[t.dim() for t in (q, k, v)]}"
        )
    if q.dtype not in _TYPES:
        raise RuntimeError("FlashAttention only supports fp16, bf16, and fp8_e4m3 data type")
    if q.shape[-2] % k.shape[-2]:
        raise RuntimeError("Number of heads in key/value must divide number of heads in query")
    if q.shape[-1] > 256 or q.shape[-1] % (16 if q.dtype is torch.float8_e4m3fn else 8):
        raise RuntimeError(f"head_size should be a multiple of 8 and at most 256, got {q.shape[-1]}")


# -- the operators ------------------------------------------------------------------------------------------


def _define(forward: str, backward: str, packed: str) -> None:
    n_packed = packed.count(",")
    define(
        _NAME,
        f"{forward}(Tensor q, Tensor k, Tensor v, {packed}{_OPTIONS}) -> (Tensor, Tensor)",
        _forward_shapes,
        package=_NAME,
    )
    run_backward = define(
        _NAME,
        f"{backward}(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, {packed}{_OPTIONS})"
        " -> (Tensor, Tensor, Tensor)",
        lambda dout, q, k, v, *rest: tuple(t.new_empty(t.shape) for t in (q, k, v)),
        scratch=_packed_scratch if packed else _scratch,
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        lengths = inputs[3:5] if packed else ()
        ctx.rest = inputs[3 + len(lengths) :]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:3], *output, *lengths)

    def attend_back(ctx: Any, dout: Tensor | None, *unused: Any) -> tuple[Any, ...]:
        nothing = (None,) * (n_packed + 6)
        if dout is None:
            return (None, None, None, *nothing)
        q, k, v, out, lse, *lengths = ctx.saved_tensors
        return (*run_backward(dout, q, k, v, out, lse, *lengths, *ctx.rest), *nothing)

    differentiate(_NAME, forward, save, attend_back)


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    rows = (q.shape[0], q.shape[2], q.shape[1]) if q.dim() == 4 else (q.shape[1], q.shape[0])
    dtype = torch.bfloat16 if q.dtype is torch.float8_e4m3fn else q.dtype
    return q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype), q.new_empty(rows, dtype=torch.float32)


def _scratch(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[int]:
    batch, length, heads, width = q.shape
    wide, (rows, columns) = _head(max(width, v.shape[-1])), _blocks(max(width, v.shape[-1]), rest[-4:])
    n_rows, n_columns = _up(length, rows), _up(k.shape[1], columns)
    keys = batch * k.shape[2] * n_columns * wide * 4 if heads != k.shape[2] else 0
    numbers = batch * heads * n_rows * 4
    return [numbers, numbers, numbers * wide, keys, keys, -(-length // rows) * batch * heads * 4]


def _packed_scratch(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[int]:
    tokens, heads, width = q.shape
    n_sequences, longest = rest[2].shape[0] - 1, rest[4]  # out, lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q
    wide, (rows, columns) = _head(max(width, v.shape[-1])), _blocks(max(width, v.shape[-1]), rest[-4:])
    n_rows = _up(tokens + n_sequences * rows, rows)
    n_columns = _up(k.shape[0] + n_sequences * columns, columns)
    keys = k.shape[1] * n_columns * wide * 4 if heads != k.shape[1] else 0
    numbers = heads * n_rows * 4
    return [numbers, numbers, numbers * wide, keys, keys, -(-longest // rows) * n_sequences * heads * 4]


def _blocks(width: int, options: Any) -> tuple[int, int]:
    """Rows and columns of a block of the gradient's kernel, to which lengths are rounded."""
    causal, left, right, softcap = options
    wide = _head(width)
    major, minor = torch.cuda.get_device_capability()
    if major >= 9:
        is_masked = causal or left >= 0 or right >= 0 or softcap > 0
        rows = {64: 96 if causal and softcap > 0 else 128, 128: 64 if is_masked else 80}.get(wide, 64)
        return rows, 128 if wide <= 128 else 96 if wide <= 192 else 80
    if (major, minor) in ((8, 6), (8, 9)):
        return 64 if wide <= 192 else 32, 128 if wide <= 96 else 96 if wide <= 128 else 64
    return 128 if wide <= 64 else 64, 128 if wide <= 128 else 80 if wide <= 192 else 64


def _up(n: int, unit: int) -> int:
    return (n + unit - 1) // unit * unit


def _head(width: int) -> int:
    return next(each for each in (64, 96, 128, 192, 256) if width <= each)
