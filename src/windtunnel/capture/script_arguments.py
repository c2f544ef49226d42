"""A script's arguments, as a list that records whether the script read them.

    [script, *arguments] ──> sys.argv ──> was_read

An option after the script's name belongs to the script. If the script reads no arguments, an option that was meant for
windtunnel would be ignored silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, SupportsIndex

__all__ = ["ScriptArguments"]


class ScriptArguments(list):
    """sys.argv. Reading the script's name does not count: many libraries do that."""

    was_read = False

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if index != 0:
            self.was_read = True
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        self.was_read = True
        return super().__iter__()

    def __len__(self) -> int:
        self.was_read = True
        return super().__len__()

    def __contains__(self, item: object) -> bool:
        self.was_read = True
        return super().__contains__(item)

    def __add__(self, other: Any) -> Any:
        self.was_read = True
        return super().__add__(other)

    def __repr__(self) -> str:
        self.was_read = True
        return super().__repr__()

    def copy(self) -> list[Any]:
        self.was_read = True
        return super().copy()

    def index(self, *args: Any) -> int:
        self.was_read = True
        return super().index(*args)

    def pop(self, index: SupportsIndex = -1) -> Any:
        self.was_read = True
        return super().pop(index)

    def __reduce__(self) -> Any:
        return list, (list(self),)  # a process that receives them does not need this class
