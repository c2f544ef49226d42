"""Put a mode on torch's stack of modes and take it off again, in whatever order the user's own modes come and go.

install() in start ──> [.., user's modes, ours, later ones] ──> remove() in stop takes out ours, wherever it is
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["ModeSwitch"]


class ModeSwitch:
    """Turns one torch function mode on and off without a `with` block."""

    def __init__(self, mode: TorchFunctionMode) -> None:
        self.mode = mode
        self._is_on = False

    def install(self, model: Any = None) -> None:
        if not self._is_on:
            self._is_on = True
            self.mode.__enter__()

    def remove(self) -> None:
        if not self._is_on:
            return
        self._is_on = False
        above = []
        while torch._C._len_torch_function_stack():
            top = torch._C._pop_torch_function_stack()
            if top is self.mode:
                break
            above.append(top)
        for mode in reversed(above):
            torch._C._push_on_torch_function_stack(mode)

    def end_step(self) -> None:
        """Nothing of a mode outlives stop."""
