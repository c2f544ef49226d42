"""Take our own hooks out of sight while a compiler looks: hooks of modules, of all modules and optimizers, operators.

    [user's hook, ours] ──> hidden ──> [user's hook] ──> Dynamo traces, or checks its guards ──> as before

Hooks that a compiler may trace (`is_traceable`) stay: they are the notes of modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer

__all__ = ["hide_global_hooks", "hide_module_hooks", "hide_operators", "is_ours", "mark_traceable"]

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


def is_ours(hook: Any) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith(_OURS)


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
