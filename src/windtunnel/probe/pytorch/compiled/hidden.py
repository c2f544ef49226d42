"""Hide our own hooks and modes while a compiler looks: it must see the program as it is without us.

    [user's hook, ours]  ──> hide ──> [user's hook]  ──> Dynamo traces, or checks its guards ──> undo ──> as before
    [user's modes, ours] ──> hide ──> [user's modes] ──> compiled code ──> show ──> as before

Hidden are hooks of single modules, of all modules and of optimizers, and our operators on Tensor. Hooks that a compiler
may trace (`mark_traceable`) stay: they record modules inside a graph. Dynamo traces through any torch function mode,
guards on the stack of modes, and compiles nothing at all under a dispatch mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.probe.pytorch.eager.attribute_swap import is_ours

__all__ = [
    "hidden_modes",
    "hide_global_hooks",
    "hide_modes",
    "hide_module_hooks",
    "hide_operators",
    "mark_traceable",
    "show_modes",
]

_OURS = __name__.partition(".")[0] + "."
_GLOBAL = (
    nn.modules.module._global_forward_pre_hooks,
    nn.modules.module._global_forward_hooks,
    optimizer._global_optimizer_pre_hooks,
    optimizer._global_optimizer_post_hooks,
)
# Of each kind the hooks first, then what is noted about them under the same number.
_OF_A_MODULE = (
    ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
)
_TRACEABLE = "_windtunnel_traceable"

Undo = Callable[[], None]
_Kind = type[TorchFunctionMode] | type[TorchDispatchMode]
Hidden = tuple[list[tuple[int, Any]], list[tuple[int, Any]]]  # (place, mode) of functions and of dispatch


def mark_traceable(hook: Callable) -> None:
    """Let a compiler see this hook."""
    setattr(hook, _TRACEABLE, True)


def hide_global_hooks() -> Undo:
    return _hide([table] for table in _GLOBAL)


def hide_module_hooks(modules: Iterable[nn.Module]) -> Undo:
    return _hide(
        [getattr(module, name) for name in names]
        for module in modules
        for names in _OF_A_MODULE
        if getattr(module, names[0])
    )


def hide_operators() -> Undo:
    """Tensor's own operators again, where ours stand in for them."""
    mine = {
        name: value for name, value in vars(torch.Tensor).items() if getattr(value, "_is_windtunnel", False)
    }
    for name in mine:
        delattr(torch.Tensor, name)

    def undo() -> None:
        for name, value in mine.items():
            setattr(torch.Tensor, name, value)

    return undo


def _hide(kinds: Iterable[list[dict[int, Any]]]) -> Undo:
    changed = []
    for tables in kinds:
        hidden = [
            key for key, hook in tables[0].items() if is_ours(hook) and not getattr(hook, _TRACEABLE, False)
        ]
        for table in tables if hidden else ():
            changed.append((table, dict(table)))
            for key in hidden:
                table.pop(key, None)

    def undo() -> None:
        for table, before in changed:
            added = {key: hook for key, hook in table.items() if key not in before}
            table.clear()
            table.update(before)
            table.update(added)

    return undo


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


def _take(modes: list, kind: _Kind) -> list[tuple[int, Any]]:
    mine = [(place, mode) for place, mode in enumerate(modes) if type(mode).__module__.startswith(_OURS)]
    if mine:
        lowest = mine[0][0]
        for mode in reversed(modes[lowest:]):
            kind.__exit__(mode, None, None, None)
        for mode in modes[lowest:]:
            if not type(mode).__module__.startswith(_OURS):
                kind.__enter__(mode)
    return mine


def _put(mine: list[tuple[int, Any]], modes: list, kind: _Kind) -> None:
    wanted = list(modes)
    for place, mode in mine:
        wanted.insert(place, mode)
    first = min(mine[0][0], len(modes))
    for mode in reversed(modes[first:]):
        kind.__exit__(mode, None, None, None)
    for mode in wanted[first:]:
        kind.__enter__(mode)
