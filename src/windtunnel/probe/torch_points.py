"""Level debug for torch: which tensors may get a gradient, and a gradient as it is now.

save(tensor, "hidden") ──> requires_grad? ──> hook ──> the gradient, copied
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.probe.points import PointWriter as AnyPointWriter
from windtunnel.probe.torch_gradients import current_pass

__all__ = ["PointWriter"]


class PointWriter(AnyPointWriter):
    """Saves single points for one debugger."""

    def current_pass(self) -> int:
        return current_pass()

    def is_recording(self) -> bool:
        return torch.is_grad_enabled()

    def has_gradient(self, tensor: torch.Tensor) -> bool:
        return tensor.requires_grad

    def kept(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.detach().clone()

    def encode(self, pieces: list, variable: Any, entry: str, store: Any) -> None:
        with torch._C.DisableTorchFunction():
            super().encode(pieces, variable, entry, store)
