"""Take our own modes off torch's stacks for a while: a compiler must see the program as it is without us.

    [user's modes, ours] ──> hide ──> [user's modes] ──> compiled code ──> show ──> as before

Dynamo traces through any torch function mode, guards on the stack, and compiles nothing at all under a dispatch mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["hidden_modes", "hide_modes", "show_modes"]

_OURS = __name__.partition(".")[0] + "."

Hidden = tuple[list[tuple[int, Any]], list[tuple[int, Any]]]  # (place, mode) of functions and of dispatch


def hide_modes() -> Hidden:
    """Take them off in this thread; give the result to `show_modes`."""
    functions = _take(_function_modes(), TorchFunctionMode)
    dispatched = _dispatch_modes()
    return functions, _take(dispatched, TorchDispatchMode) if dispatched else []


def show_modes(hidden: Hidden) -> None:
    """Put them back where they were, below modes that were above them."""
    functions, dispatched = hidden
    if functions:
        _put(functions, _function_modes(), TorchFunctionMode)
    if dispatched:
        _put(dispatched, _dispatch_modes(), TorchDispatchMode)


@contextmanager
def hidden_modes() -> Iterator[None]:
    hidden = hide_modes()
    try:
        yield
    finally:
        show_modes(hidden)


def _function_modes() -> list:
    return [torch._C._get_function_stack_at(index) for index in range(torch._C._len_torch_function_stack())]


def _dispatch_modes() -> list:
    modes = [torch._C._get_dispatch_stack_at(index) for index in range(torch._C._len_torch_dispatch_stack())]
    # Under a fake or functional mode torch itself is tracing, and the order of its modes is not ours to touch.
    return [] if any(mode is None or mode.is_infra_mode() for mode in modes) else modes


def _take(modes: list, kind: type) -> list[tuple[int, Any]]:
    mine = [(place, mode) for place, mode in enumerate(modes) if type(mode).__module__.startswith(_OURS)]
    if mine:
        lowest = mine[0][0]
        for mode in reversed(modes[lowest:]):
            kind.__exit__(mode, None, None, None)
        for mode in modes[lowest:]:
            if not type(mode).__module__.startswith(_OURS):
                kind.__enter__(mode)
    return mine


def _put(mine: list[tuple[int, Any]], modes: list, kind: type) -> None:
    wanted = list(modes)
    for place, mode in mine:
        wanted.insert(place, mode)
    first = min(mine[0][0], len(modes))
    for mode in reversed(modes[first:]):
        kind.__exit__(mode, None, None, None)
    for mode in wanted[first:]:
        kind.__enter__(mode)
