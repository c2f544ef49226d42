"""`torch.optim.LBFGS` reads the loss and gradients to decide when to stop: unknown values must not look converged.

optimizer.step(closure) ──> max_iter iterations, the history as full as it gets, and a notice that says so

Where the parameters are known (a small problem from constants), the real values decide.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.known_values import values_of
from windtunnel.capture.pytorch.tensors.storage import world

__all__ = ["install_lbfgs"]

# Nothing is below these, so only max_iter ends a step: the most directions that a step can add.
_TOLERANCES = {"tolerance_grad": -math.inf, "tolerance_change": -math.inf}


def install_lbfgs() -> None:
    """Replace the step of this optimizer."""
    original = torch.optim.LBFGS.step

    @functools.wraps(original)
    def step(self: Any, closure: Any) -> Any:
        group = self.param_groups[0]
        if all(values_of(parameter) is not None for parameter in group["params"]):
            return original(self, closure)
        world.recorder.notice(
            f"L-BFGS at {world.recorder.user_line()} ran all {group['max_iter']} iterations of each step: whether it"
            " converges earlier, and needs less memory, depends on values"
        )
        given = {name: group[name] for name in _TOLERANCES}
        group.update(_TOLERANCES)
        try:
            return original(self, closure)
        finally:
            group.update(given)

    torch.optim.LBFGS.step = step  # type: ignore[method-assign]
