"""Where one step of a program ends and the next begins, for a debugger that is started once around the whole training.

    outermost calls of cells and compiled functions ──> the optimizer has run, and something runs again ──> next_step()

MindSpore's guide to level L2 starts the debugger once, before the model, and calls `step` once at the end. A step ends
where something that ran in it is called again and its optimizer has run: several graphs in one step, and gradients that
are accumulated over several calls, stay together. Where no optimizer exists, any repeated call begins a step.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any

import mindspore
from mindspore import nn
from mindspore.graph import api

__all__ = ["StepWatch"]


class StepWatch:
    """Calls `next_step` right before the first call of a new step, unless the program itself said that one ended."""

    def __init__(self, next_step: Callable[[], None]) -> None:
        self._next_step = next_step
        self._before: tuple[Callable, Callable] | None = None
        self._depth = 0
        self._called: set[Hashable] = set()  # in this step
        self._has_updated = False  # the optimizer of this step has run
        self._n_found = 0  # steps that were found here
        self._is_counted_by_user = False

    def install(self) -> None:
        if self._before is None:
            self._before = nn.Cell.__call__, api._JitExecutor.__call__
            nn.Cell.__call__ = self._watched(nn.Cell.__call__, lambda cell: (id(cell), cell))
            api._JitExecutor.__call__ = self._watched(api._JitExecutor.__call__, _compiled)

    def remove(self) -> None:
        if self._before is not None:
            nn.Cell.__call__, api._JitExecutor.__call__ = self._before
            self._before = None
        self._called.clear()
        self._has_updated = False

    def user_step(self) -> None:
        """The user called `step`. One who does so without a repeated call in between counts every step."""
        self._is_counted_by_user = self._is_counted_by_user or not self._n_found
        self._called.clear()
        self._has_updated = False

    def _watched(self, original: Callable, unit: Callable[[Any], tuple[Hashable, Any]]) -> Callable:
        @wraps(original)
        def __call__(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth or self._is_counted_by_user:
                return original(owner, *args, **kwargs)
            key, holder = unit(owner)
            self._begin(key)
            self._depth += 1
            try:
                return original(owner, *args, **kwargs)
            finally:
                self._depth -= 1
                self._has_updated = self._has_updated or _updates(holder)

        return __call__

    def _begin(self, key: Hashable) -> None:
        if key in self._called and (self._has_updated or not _optimizer_exists()):
            self._n_found += 1
            self._called.clear()
            self._has_updated = False
            self._next_step()
        self._called.add(key)


def _compiled(executor: Any) -> tuple[Hashable, Any]:
    return (executor.fn, id(executor.obj)), executor.fn if executor.obj is None else executor.obj


def _updates(holder: Any) -> bool:
    """Whether a call of this cell or function runs an optimizer."""
    if isinstance(holder, nn.Cell):
        return any(_is_optimizer(cell) for _, cell in holder.cells_and_names())
    try:
        used = inspect.getclosurevars(inspect.unwrap(holder))
    except (TypeError, ValueError):  # built-in, or without source
        return False
    cells = [
        value for value in (*used.nonlocals.values(), *used.globals.values()) if isinstance(value, nn.Cell)
    ]
    return any(_updates(cell) for cell in cells)


def _is_optimizer(cell: Any) -> bool:
    return isinstance(cell, (nn.Optimizer, mindspore.experimental.optim.Optimizer))


def _optimizer_exists() -> bool:
    kinds = (nn.Optimizer, mindspore.experimental.optim.Optimizer)
    return any(issubclass(type(thing), kinds) for thing in gc.get_objects())
