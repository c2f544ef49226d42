"""How a Python function was called: which of its arguments by position, which by name.

    frame of the caller ──> the call instruction it is at ──> (number by position, names)

A torch function passes on its arguments bound to its own signature. The dump should show them as the user wrote
them (`F.dropout(x, 0.5)` has a second argument, not a keyword), and only the caller's instruction tells.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

__all__ = ["CallSites"]

_NO_WORK = ("CACHE", "PRECALL", "EXTENDED_ARG", "RESUME", "NOP")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_Shape = tuple[int, tuple[str, ...]]  # number of positional arguments, names of the others
_Parameters = tuple[tuple[str, ...], tuple[Any, ...], int]  # names, defaults, how many go by position


class CallSites:
    """Recovers the arguments of a Python function as its caller wrote them."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[CodeType, int], _Shape | None] = {}
        self._signatures: dict[Callable, _Parameters | None] = {}

    def as_written(
        self, function: Callable, frame: FrameType | None, args: tuple, kwargs: dict
    ) -> tuple[tuple, dict]:
        """Return (args, kwargs) as the caller wrote them; unchanged if that cannot be determined.

        `frame` is any frame called, directly or not, by `function`.
        """
        parameters = self._parameters(function)
        own = getattr(function, "__code__", None)
        while frame is not None and frame.f_code is not own:
            frame = frame.f_back
        if parameters is None or frame is None:
            return args, kwargs
        names, defaults, _ = parameters
        values = frame.f_locals
        caller = frame.f_back
        while caller is not None and caller.f_code.co_filename.endswith("_jit_internal.py"):
            caller = caller.f_back  # torch's choice between two functions (return_indices=True or not)
        n, by_name = (caller and self._shape(caller)) or _likely(parameters, values)
        if names[:1] == ("self",):  # a method: the object is not among the arguments of the instruction
            n += 1
        if n > len(names) or any(name not in values for name in (*names[:n], *by_name)):
            return args, kwargs
        # Something in between may have added arguments (functools.partial): keep them.
        more = [
            name
            for name, default in zip(names[n:], defaults[n:], strict=True)
            if name not in by_name and values.get(name, default) is not default
        ]
        return tuple(values[name] for name in names[:n]), {name: values[name] for name in (*by_name, *more)}

    def _parameters(self, function: Callable) -> _Parameters | None:
        if function not in self._signatures:
            self._signatures[function] = _read_parameters(function)
        return self._signatures[function]

    def _shape(self, frame: FrameType) -> _Shape | None:
        key = (frame.f_code, frame.f_lasti)
        if key not in self._shapes:
            self._shapes[key] = _read(frame.f_code, frame.f_lasti)
        return self._shapes[key]


def _read(code: CodeType, position: int) -> _Shape | None:
    """Decode the call instruction at `position`; None for calls with * or ** (their shape is not in the code)."""
    # A frame that waits for a call may be at one of the cache entries behind its instruction.
    seen = [
        item for item in dis.get_instructions(code) if item.offset <= position and item.opname not in _NO_WORK
    ]
    if not seen:
        return None
    name, n = seen[-1].opname, seen[-1].arg or 0
    last: Any = seen[-2] if len(seen) > 1 else None
    if name in ("CALL", "CALL_FUNCTION", "CALL_METHOD"):
        names = code.co_consts[last.arg] if last is not None and last.opname == "KW_NAMES" else ()
    elif name in ("CALL_KW", "CALL_FUNCTION_KW"):
        names = last.argval if last is not None and last.opname.startswith("LOAD_CONST") else None
    else:
        return None
    if not isinstance(names, tuple) or len(names) > n:
        return None
    return n - len(names), names


def _read_parameters(function: Callable) -> _Parameters | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind in _VARIADIC for parameter in parameters):
        return None  # its arguments arrive as they were written
    by_position = [parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    return tuple(p.name for p in parameters), tuple(p.default for p in parameters), len(by_position)


def _likely(parameters: _Parameters, values: dict[str, Any]) -> _Shape:
    """By position up to the last argument that is not its default."""
    names, defaults, most = parameters
    given = [
        index
        for index, (name, default) in enumerate(zip(names[:most], defaults, strict=False), 1)
        if values.get(name, default) is not default
    ]
    return max(given, default=0), ()
