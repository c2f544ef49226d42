"""`flex_attention` as the compiler builds it: one kernel that keeps a log-sum-exp per row, and no scores.

    torch.compile(flex_attention)(q, k, v) ──> flex_attention.forward  ──> out, log-sum-exp, row maxima
                                  backward ──> flex_attention.backward ──> dq, dk, dv; while it runs: a number per row

Uncompiled, torch's own code runs here as it does on a device, and materialises every score. Torch's autograd and
selective checkpointing are unchanged: only the innermost kernels are replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.attention.flex_attention
from torch._higher_order_ops.flex_attention import (
    flex_attention,
    flex_attention_backward,
    sdpa_dense,
    sdpa_dense_backward,
)

from windtunnel.capture.pytorch.kernels.define_operator import define

__all__ = ["install_flex_attention"]

Tensor = torch.Tensor
_NAME = "flex_attention"


def install_flex_attention() -> Callable[[], None]:
    """Returns a function to call when the program compiles something: from then on, the fused kernel is used."""
    is_fused = False

    def fuse() -> None:
        nonlocal is_fused
        is_fused = True
        torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = (
            True  # else: "called uncompiled"
        )

    forward = define(
        _NAME, "forward(Tensor query, Tensor key, Tensor value) -> (Tensor, Tensor, Tensor)", _results
    )
    backward = define(
        _NAME,
        "backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp)"
        " -> (Tensor, Tensor, Tensor)",
        lambda grad_out, query, key, value, *rest: tuple(torch.empty_like(t) for t in (query, key, value)),
        scratch=lambda grad_out, query, *rest: [query.shape[:-1].numel() * 4],
    )

    @flex_attention.py_impl(torch._C.DispatchKey.PrivateUse1)
    def attend(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        if is_fused:
            return forward(query, key, value)
        return sdpa_dense(query, key, value, *rest)

    @flex_attention_backward.py_impl(torch._C.DispatchKey.PrivateUse1)
    def attend_back(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        grad_out: Tensor,
        *rest: Any,
    ) -> tuple[Any, ...]:
        if not is_fused:
            return sdpa_dense_backward(query, key, value, out, logsumexp, grad_out, *rest)
        captured = rest[6] if len(rest) > 6 else ()  # tensors the program's score function closes over
        gradients = tuple(torch.empty_like(t) if isinstance(t, Tensor) else None for t in captured)
        return (*backward(grad_out, query, key, value, out, logsumexp), gradients)

    return fuse


def _results(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    is_as_wide = query.shape[-1] == value.shape[-1]
    out = torch.empty_like(query) if is_as_wide else query.new_empty((*query.shape[:-1], value.shape[-1]))
    logsumexp, maxima = (query.new_empty(query.shape[:-1], dtype=torch.float32) for _ in range(2))
    return out, logsumexp, maxima
