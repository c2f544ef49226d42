"""Temporarily redirect Python functions to a recorder, no matter who holds a reference to them.

    swap(function, recorder) ──> function(*args) ──> recorder(original, args, kwargs) ──> restore()

A function that many modules import by name (`from torch.distributed import all_reduce`) cannot be replaced by
assigning to one module, and code that tests `op is dist.isend` must get the same answer as before. So the function
object stays, and its code is replaced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

__all__ = ["CodeSwaps", "Recorder", "call_recorder"]

Recorder = Callable[[Callable, tuple, dict], Any]


class _StandIn:
    """The code that replaces that of one function; created once, however often it is used."""

    def __init__(self, function: FunctionType) -> None:
        self.old = function.__code__
        self.new = _stand_in_code(self.old)
        self.original = FunctionType(
            self.old, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        self.original.__kwdefaults__ = function.__kwdefaults__
        self.signature = inspect.signature(function)
        self.recorder: Recorder = _call


# The code runs with the globals and the closure of the function it replaces, so it can reach us only by import, and
# finds its _StandIn by its own code object.
_STAND_INS: dict[FunctionType, _StandIn] = {}
_BY_CODE: dict[int, _StandIn] = {}  # by identity: codes of two functions may be equal


class CodeSwaps:
    """The functions whose code is currently replaced, and how to restore them."""

    def __init__(self) -> None:
        self._swapped: list[tuple[FunctionType, _StandIn]] = []

    def swap(self, function: Callable, recorder: Recorder) -> bool:
        """Call `recorder(original, args, kwargs)` in place of a function; False if it is not a Python function."""
        inner = inspect.unwrap(function)
        if not isinstance(inner, FunctionType) or id(inner.__code__) in _BY_CODE:
            return False
        stand_in = _STAND_INS.get(inner)
        if stand_in is None or stand_in.old is not inner.__code__:
            stand_in = _STAND_INS[inner] = _StandIn(inner)  # keeps its code, and so its place in _BY_CODE
            _BY_CODE[id(stand_in.new)] = stand_in
        stand_in.recorder = recorder
        inner.__dict__.setdefault("__signature__", stand_in.signature)
        inner.__code__ = stand_in.new
        self._swapped.append((inner, stand_in))
        return True

    def restore(self) -> None:
        """Restore the code of every function."""
        swapped, self._swapped = self._swapped, []
        for function, stand_in in reversed(swapped):
            if function.__code__ is stand_in.new:
                function.__code__ = stand_in.old
                if function.__dict__.get("__signature__") is stand_in.signature:
                    del function.__dict__["__signature__"]
            stand_in.recorder = _call  # a call that has just begun in another thread still arrives here


def _call(original: Callable, args: tuple, kwargs: dict) -> Any:
    return original(*args, **kwargs)


def call_recorder(code: CodeType, args: tuple, kwargs: dict) -> Any:
    """What the replacement code of a function does."""
    stand_in = _BY_CODE[id(code)]
    return stand_in.recorder(stand_in.original, args, kwargs)


def _stand_in_code(old: CodeType) -> CodeType:
    def stand_in(*args, **kwargs):
        import sys

        from windtunnel.probe.collect.code_swap import call_recorder

        return call_recorder(sys._getframe().f_code, args, kwargs)

    # As many free variables as the closure has cells, else Python refuses the code.
    return stand_in.__code__.replace(co_freevars=old.co_freevars, co_name=old.co_name)
