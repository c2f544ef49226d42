"""The compiled modules of causal-conv1d and mamba-ssm: their Python, installed without them, runs as it is.

causal_conv1d_cuda.causal_conv1d_fwd(x, weight, …, out, …) ──> one row; `out` and the final states are written
selective_scan_cuda.fwd(u, delta, A, B, C, D, z, …)        ──> output, states of every 2,048 positions, gated output
                    bwd                                    ──> gradients; those of B and C are summed in fp32
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.define_operator import announce
from windtunnel.capture.pytorch.kernels.launches import record_launch

__all__ = ["convolution_modules", "scan_modules"]

Tensor = torch.Tensor
_CHUNK = 2048  # positions whose state is kept


def _launch(package: str, name: str, read: Sequence[Any], written: Sequence[Any]) -> None:
    announce(f"{package}'s kernels are not installed here: they were simulated")
    record_launch(
        name, "", [t for t in read if isinstance(t, Tensor)], [t for t in written if isinstance(t, Tensor)]
    )


# -- causal-conv1d --------------------------------------------------------------------------------------------


def convolution_modules() -> dict[str, dict[str, Any]]:
    """As called by 1.4 and 1.5, which hand back what they made, and by 1.6, which is given it."""

    def forward(x: Tensor, weight: Tensor, bias: Any, seq_idx: Any, initial: Any, *rest: Any) -> Tensor:
        out = rest[0] if len(rest) == 3 else torch.empty_like(x)
        _launch("causal-conv1d", "causal_conv1d.fwd", [x, weight, bias, seq_idx, initial], [out, rest[-2]])
        return out

    def backward(
        x: Tensor, weight: Tensor, bias: Any, dout: Tensor, seq_idx: Any, initial: Any, *rest: Any
    ) -> Any:
        if len(rest) == 6:
            dfinal, *results = rest[:-1]
        else:
            dfinal, dx, has_initial = rest[:3]
            dx = torch.empty_like(x) if dx is None else dx
            sums = [None if t is None else torch.zeros_like(t, dtype=torch.float32) for t in (weight, bias)]
            shape = (x.shape[0], weight.shape[-1] - 1, x.shape[1])
            results = [dx, *sums, x.new_empty(shape).transpose(1, 2) if has_initial else None]
        _launch(
            "causal-conv1d", "causal_conv1d.bwd", [x, weight, bias, dout, seq_idx, initial, dfinal], results
        )
        return results

    def update(x: Tensor, state: Tensor, weight: Tensor, bias: Any, *rest: Any) -> Tensor:
        out = rest[0] if isinstance(rest[0], Tensor) else torch.empty_like(x)
        _launch("causal-conv1d", "causal_conv1d.update", [x, state, weight, bias], [out, state])
        return out

    return {
        "causal_conv1d_cuda": {
            "causal_conv1d_fwd": forward,
            "causal_conv1d_bwd": backward,
            "causal_conv1d_update": update,
        }
    }


# -- mamba-ssm ------------------------------------------------------------------------------------------------


def scan_modules() -> dict[str, dict[str, Any]]:
    return {"selective_scan_cuda": {"fwd": _scan, "bwd": _scan_back}}


def _scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any, z: Any, bias: Any, *_: Any
) -> list[Tensor]:
    gated = [] if z is None else [torch.empty_like(z)]
    out = torch.empty_like(delta)
    n_chunks = (u.shape[-1] + _CHUNK - 1) // _CHUNK
    states = u.new_empty((*u.shape[:2], n_chunks, A.shape[1] * 2), dtype=A.dtype)
    _launch("mamba-ssm", "selective_scan.fwd", [u, delta, A, B, C, D, z, bias], [out, states, *gated])
    return [out, states, *gated]


def _scan_back(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any, z: Any, bias: Any, dout: Tensor, states: Any,
    out: Any, dz: Any, softplus: bool, again: bool,
) -> list[Tensor | None]:  # fmt: skip
    gated: list[Tensor | None] = []
    if z is not None:
        gated = [torch.empty_like(z) if dz is None else dz, *([torch.empty_like(out)] if again else [])]
    du, ddelta, dA = torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(A)
    dB, dC = (torch.zeros_like(t, dtype=torch.float32 if t.dim() > 2 else t.dtype) for t in (B, C))
    dD, dbias = (None if t is None else torch.zeros_like(t) for t in (D, bias))
    read = [u, delta, A, B, C, D, z, bias, dout, states, out]
    _launch("mamba-ssm", "selective_scan.bwd", read, [du, ddelta, dA, dB, dC, dD, dbias, *gated])
    return [du, ddelta, dA, dB.to(B.dtype), dC.to(C.dtype), dD, dbias, *gated]
