"""Level debug for MindSpore: which tensors may get a gradient, and a gradient as it is now.

save(tensor, "hidden") ──> in a function that is differentiated? ──> hook ──> the gradient, copied
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor
from mindspore.graph.api import _pynative_executor

from windtunnel.probe.mindspore_gradients import current_pass
from windtunnel.probe.points import PointWriter as AnyPointWriter

__all__ = ["PointWriter"]


class PointWriter(AnyPointWriter):
    """Saves single points for one debugger."""

    def current_pass(self) -> int:
        return current_pass()

    def is_recording(self) -> bool:
        return _pynative_executor.requires_grad()

    def has_gradient(self, tensor: Tensor) -> bool:
        return tensor._grad_node is not None

    def kept(self, gradient: Tensor) -> Tensor:
        return Tensor(np.array(gradient.asnumpy()))
