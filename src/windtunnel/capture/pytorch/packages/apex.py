"""Apex's fused softmax kernels, which Megatron loads when it finds them.

scaled_upper_triang_masked_softmax_cuda.forward(scores, scale) ──> probabilities: all that backward needs
                                        backward(d_probabilities, …) ──> the gradient, written over its input
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.define_operator import define

__all__ = ["SOFTMAX_MODULES", "apex_modules"]

Tensor = torch.Tensor


SOFTMAX_MODULES = (
    "scaled_upper_triang_masked_softmax_cuda",
    "scaled_masked_softmax_cuda",
    "scaled_softmax_cuda",
)


def apex_modules() -> dict[str, dict[str, Any]]:
    """The three kernels: causal, with a mask, and plain."""
    return {
        "scaled_upper_triang_masked_softmax_cuda": _kernels("scaled_upper_triang_masked_softmax_cuda", ""),
        "scaled_masked_softmax_cuda": _kernels("scaled_masked_softmax_cuda", "Tensor mask, ")
        | {"get_batch_per_block": _batch_per_block},
        "scaled_softmax_cuda": _kernels("scaled_softmax_cuda", ""),
    }


def _kernels(name: str, mask: str) -> dict[str, Any]:
    """Megatron's autograd functions call these and keep only the result."""
    forward = define(
        name,
        f"forward(Tensor input, {mask}float scale) -> Tensor",
        lambda x, *rest: x.new_empty(x.shape),
        package="apex",
    )
    backward = define(
        name,
        "backward(Tensor(a!) output_grads, Tensor softmax_results, float scale) -> Tensor(a!)",
        lambda grads, results, scale: grads,
    )

    def run(x: Tensor, *rest: Any) -> Tensor:
        return forward(x, *rest[:-1], float(rest[-1]))

    def run_backward(grads: Tensor, results: Tensor, scale: Any) -> Tensor:
        return backward(grads.contiguous(), results, float(scale))

    return {"forward": run, "backward": run_backward}


def _batch_per_block(query_length: int, key_length: int, batches: int, heads: int) -> int:
    """How many rows one block of 128 threads takes, as the kernel's own launch code computes it."""
    power = max(key_length - 1, 1).bit_length()
    elements = 1 << power
    warp = min(elements, 32)
    per_warp = 2 if elements <= 128 else 1
    return 128 // warp * per_warp
