"""Temporarily replace attributes of torch, and restore all of them.

replace(owner, name, value) ──> … ──> restore()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

__all__ = ["HooksAndOurs", "Instead", "Swaps", "has_hooks_of_others", "is_ours"]

_MISSING = object()
_OURS = __name__.partition(".")[0] + "."


class Swaps:
    """The attributes that are currently replaced."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module or a class; `restore` undoes it."""
        before = vars(owner).get(name, _MISSING)
        self._undo.append(
            lambda: delattr(owner, name) if before is _MISSING else setattr(owner, name, before)
        )
        setattr(owner, name, value)

    def undo_with(self, undo: Callable[[], None]) -> None:
        """Have this called by `restore` too."""
        self._undo.append(undo)

    def restore(self) -> None:
        undo, self._undo = self._undo, []
        for put_back in reversed(undo):
            put_back()


class Instead:
    """A descriptor in place of an instance attribute, for all existing and future objects of a class."""

    def __init__(self, name: str, read: Callable[[Any, Any], Any]) -> None:
        self.name = name
        self.read = read  # the object and its own value ──> what is seen

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else self.read(instance, instance.__dict__[self.name])

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.name] = value


class HooksAndOurs:
    """The list of a context's own hooks, with ours added on iteration."""

    def __init__(self, hooks: list, ours: Callable) -> None:
        self.hooks = hooks
        self.ours = ours

    def __iter__(self) -> Iterator[Callable]:
        yield from self.hooks
        yield self.ours

    def __getattr__(self, name: str) -> Any:
        return getattr(self.hooks, name)


def is_ours(hook: Any) -> bool:
    """Whether a hook was installed by windtunnel."""
    return (getattr(hook, "__module__", None) or "").startswith(_OURS)


def has_hooks_of_others() -> bool:
    """Replaces torch's check before it warns that global module hooks and compiled modules do not mix."""
    tables = (
        table
        for name, table in vars(nn.modules.module).items()
        if name.startswith("_global_") and name.endswith("_hooks")
    )
    return any(not is_ours(hook) for table in tables for hook in table.values())
