"""The modes that are active in this thread: add one, remove one from anywhere in the stack, hide one for a moment.

    function modes: torch.relu(x) ──> top ──> ... ──> bottom ──> the function
    dispatch modes: aten.relu(x)  ──> top ──> ... ──> bottom ──> the kernel

torch keeps both stacks per thread. Its `with mode:` blocks must nest; start and stop of a debugger may overlap with
the user's own modes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["ModeSwitch", "hidden", "is_on", "put_on", "take_off"]


def is_on(mode: Any) -> bool:
    """Whether the mode is on in this thread."""
    n, at, _, _ = _stack_of(mode)
    return any(at(index) is mode for index in range(n()))


def put_on(mode: Any) -> None:
    """Put the mode on top, unless it is on already."""
    if not is_on(mode):
        _stack_of(mode)[3](mode)


def take_off(mode: Any) -> list[Any] | None:
    """Take the mode off; return the modes that were above it, or None if it was not on."""
    if not is_on(mode):
        return None
    _, _, pop, push = _stack_of(mode)
    above = []
    while (top := pop()) is not mode:
        above.append(top)
    above.reverse()
    for other in above:
        push(other)
    return above


@contextmanager
def hidden(*modes: Any) -> Iterator[None]:
    """Run a block as if the modes were not there, then put them back where they stood."""
    taken = [(mode, above) for mode in modes if (above := take_off(mode)) is not None]
    try:
        yield
    finally:
        for mode, above in reversed(taken):
            _put_below(mode, above)


class ModeSwitch:
    """A part of the debugger: turns one torch function mode on in start and off in stop."""

    def __init__(self, mode: TorchFunctionMode) -> None:
        self.mode = mode
        self._is_on = False

    def install(self, model: Any = None) -> None:
        if not self._is_on:
            self._is_on = True
            self.mode.__enter__()

    def remove(self) -> None:
        if self._is_on:
            self._is_on = False
            take_off(self.mode)  # the user's modes may be above it

    def end_step(self) -> None:
        """Nothing of a mode outlives stop."""


def _put_below(mode: Any, above: list[Any]) -> None:
    n, at, pop, push = _stack_of(mode)
    lifted = []
    while n() and any(at(n() - 1) is other for other in above):
        lifted.append(pop())
    push(mode)
    for other in reversed(lifted):
        push(other)


def _stack_of(mode: Any) -> tuple[Callable[[], int], Callable[[int], Any], Callable[[], Any], Callable]:
    """How many are on, which, pop, push."""
    return _DISPATCH if isinstance(mode, TorchDispatchMode) else _FUNCTION


_FUNCTION = (
    torch._C._len_torch_function_stack,
    torch._C._get_function_stack_at,
    torch._C._pop_torch_function_stack,
    torch._C._push_on_torch_function_stack,
)
_DISPATCH = (
    torch._C._len_torch_dispatch_stack,
    torch._C._get_dispatch_stack_at,
    lambda: torch._C._pop_torch_dispatch_stack(None),
    torch._C._push_on_torch_dispatch_stack,
)
