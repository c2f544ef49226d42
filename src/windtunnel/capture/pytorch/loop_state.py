"""What a tensor or a module adds to the state of a loop that reads unknown values (capture/waiting_loops.py).

    tensor ──> its values, if they are a few known integers (counters, positions), and its shape; module ──> its own numbers

The values of data and weights say nothing: what is computed from them on the device is unknown in every round.
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.known_values import is_floating, values_of
from windtunnel.capture.waiting_loops import MODULE, TENSOR

__all__ = ["state_of"]

_FEW = 64  # elements: a counter or positions, not a batch of data


def state_of(value: object) -> tuple[str, Any, Any] | None:
    """(kind, what its values add, its shape); None for other objects."""
    if isinstance(value, torch.Tensor):
        return TENSOR, _known_integers(value), tuple(value.shape)
    if isinstance(value, torch.nn.Module):
        parts = [each for each in value.__dict__.items() if isinstance(each[1], (bool, int, float, str))]
        return MODULE, [each for each in parts if not each[0].startswith("_windtunnel")], None
    return None


def _known_integers(tensor: torch.Tensor) -> object:
    if is_floating(tensor.dtype) or tensor.numel() > _FEW or tensor.layout is not torch.strided:
        return None
    known = values_of(tensor)
    return None if known is None else tuple(known.reshape(-1).tolist())
