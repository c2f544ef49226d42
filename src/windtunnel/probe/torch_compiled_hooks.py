"""Take our own hooks out of sight while a compiler looks: hooks of modules, hooks of all modules, thin operators.

    [user's hook, ours] ──> hidden ──> [user's hook] ──> Dynamo traces, or checks its guards ──> as before

Hooks that a compiler may trace (`is_traceable`) stay: they are the notes of modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

__all__ = ["hide_global_hooks", "hide_module_hooks", "hide_operators", "is_ours", "mark_traceable"]

_OURS = __name__.partition(".")[0] + "."
_GLOBAL = tuple(
    found
    for name in ("_global_forward_pre_hooks", "_global_forward_hooks")
    if (found := getattr(nn.modules.module, name, None)) is not None
)
_TRACEABLE = "_windtunnel_traceable"

Undo = Callable[[], None]


def is_ours(hook: Any) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith(_OURS)


def mark_traceable(hook: Callable) -> None:
    """Let a compiler see this hook."""
    setattr(hook, _TRACEABLE, True)


def hide_global_hooks() -> Undo:
    return _hide(_GLOBAL)


def hide_module_hooks(modules: Iterable[nn.Module]) -> Undo:
    return _hide(
        hooks for module in modules for hooks in (module._forward_pre_hooks, module._forward_hooks) if hooks
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


def _hide(tables: Iterable[dict[int, Any]]) -> Undo:
    changed = []
    for table in tables:
        before = list(table.items())
        hidden = [key for key, hook in before if is_ours(hook) and not getattr(hook, _TRACEABLE, False)]
        if hidden:
            changed.append((table, before))
            for key in hidden:
                del table[key]

    def undo() -> None:
        for table, before in changed:
            added = {key: hook for key, hook in table.items() if key not in dict(before)}
            table.clear()
            table.update(before)
            table.update(added)

    return undo
