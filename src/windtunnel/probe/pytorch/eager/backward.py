"""APIs that run during backward: of a checkpoint that recomputes its forward, or of the user's hooks.

    loss.backward() ──> torch takes every function mode off ──> engine ──> checkpoint ──> F.linear, unseen
                                     we put ours on here ──────────^

torch offers `backward` itself to the modes, and turns them off while it runs. The engine is started by one Python
function, where they are turned on again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from windtunnel.probe.collect.code_swap import CodeSwaps
from windtunnel.probe.pytorch.eager.mode_stack import is_on, put_on, take_off

__all__ = ["BackwardModes", "InBackward"]

_IS_EXCLUDED = torch._C._dispatch_tls_is_dispatch_key_excluded
_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_OPERATORS = torch._ops.__file__
_OURS = str(Path(__file__).parents[3])


class InBackward(TorchFunctionMode):
    """Represents a mode while a backward runs. It ignores our own work in hooks, and what kernels call inside.

    (A tensor subclass or a dispatch mode of the user is called below autograd; in a forward an API is around it.)
    """

    def __init__(self, mode: TorchFunctionMode) -> None:
        super().__init__()
        self.mode = mode

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if _IS_EXCLUDED(_AUTOGRAD) or _is_inner(sys._getframe(1)):
            return function(*args, **(kwargs or {}))
        return self.mode.__torch_function__(function, types, args, kwargs)


def _is_inner(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename == _OPERATORS:
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name == "__torch_dispatch__":
        return True
    # The thin methods for operators (`x + y`) are ours in every call; who called them is the question.
    if frame is not None and frame.f_code.co_name == "method":
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_OURS)


class BackwardModes:
    """Turns the modes on while autograd runs backward."""

    def __init__(self, modes: Sequence[InBackward]) -> None:
        self.modes = tuple(modes)
        self._swaps = CodeSwaps()

    def install(self, model: Any = None) -> None:
        run = getattr(torch.autograd.graph, "_engine_run_backward", None)
        if run is not None:
            self._swaps.swap(run, self._run)

    def remove(self) -> None:
        self._swaps.restore()

    def end_step(self) -> None:
        """Nothing is left after stop."""

    def _run(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        mine = [mode for mode in self.modes if not is_on(mode) and not is_on(mode.mode)]
        for mode in mine:
            put_on(mode)
        try:
            return original(*args, **kwargs)
        finally:
            for mode in mine:
                take_off(mode)
