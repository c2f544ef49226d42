"""An optimizer that is compiled: its hooks are not called, so its graph is framed by what they would have recorded.

Dynamo traces optimizer.step() ──> traced(optimizer) ──> the graph's callable, between `before` and `after`
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

__all__ = ["framed", "set_hooks", "traced"]

_Hook = Callable[[Any, Any, Any], None]
_hooks: list[_Hook] = []


class _Traced(threading.local):
    def __init__(self) -> None:
        self.optimizers: list[weakref.ref[Any]] = []


_traced = _Traced()


def set_hooks(before: _Hook, after: _Hook) -> None:
    """What an optimizer's own hooks do before and after a step."""
    _hooks[:] = [before, after]


def traced(optimizer: Any) -> None:
    """The frame that is being compiled steps this optimizer."""
    if all(known() is not optimizer for known in _traced.optimizers):
        _traced.optimizers.append(weakref.ref(optimizer))


def framed(graph: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled graph of this frame; around it the hooks of the optimizers that were traced for it."""
    optimizers, _traced.optimizers = _traced.optimizers, []
    if not optimizers or not _hooks:
        return graph
    before, after = _hooks

    @wraps(graph)
    def step(*args: Any) -> Any:
        alive = [each for optimizer in optimizers if (each := optimizer()) is not None]
        for optimizer in alive:
            before(optimizer, (), {})
        result = graph(*args)
        for optimizer in reversed(alive):
            after(optimizer, (), {})
        return result

    return step
