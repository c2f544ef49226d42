"""How a Python function was called: which of its arguments by position, which by name.

    frame of the caller ──> the call instruction it stands at ──> (number by position, names)

A torch function hands over its arguments bound to its own signature. The dump should show them as the user wrote
them (`F.dropout(x, 0.5)` has a second argument, not a keyword), and the caller's instruction is the only witness.
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


class CallSites:
    """Gives back the arguments of a Python function as its caller wrote them."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[CodeType, int], _Shape | None] = {}
        self._signatures: dict[Callable, inspect.Signature | None] = {}

    def as_written(
        self, function: Callable, frame: FrameType | None, args: tuple, kwargs: dict
    ) -> tuple[tuple, dict]:
        """Return (args, kwargs) as the caller wrote them; unchanged if that cannot be told.

        `frame` is any frame that `function` has led to.
        """
        signature = self._signature(function)
        own = getattr(function, "__code__", None)
        while frame is not None and frame.f_code is not own:
            frame = frame.f_back
        if signature is None or frame is None:
            return args, kwargs
        values = frame.f_locals
        caller = frame.f_back
        while caller is not None and caller.f_code.co_filename.endswith("_jit_internal.py"):
            caller = caller.f_back  # torch's choice between two functions (return_indices=True or not)
        names = list(signature.parameters)
        n, by_name = (caller and self._shape(caller)) or _likely(signature, values)
        if names[:1] == ["self"]:  # a method: the object is not among the arguments of the instruction
            n += 1
        if n > len(names) or any(name not in values for name in (*names[:n], *by_name)):
            return args, kwargs
        return tuple(values[name] for name in names[:n]), {name: values[name] for name in by_name}

    def _signature(self, function: Callable) -> inspect.Signature | None:
        if function not in self._signatures:
            try:
                signature: inspect.Signature | None = inspect.signature(function)
            except (TypeError, ValueError):
                signature = None
            if signature is not None and any(p.kind in _VARIADIC for p in signature.parameters.values()):
                signature = None  # its arguments arrive as they were written
            self._signatures[function] = signature
        return self._signatures[function]

    def _shape(self, frame: FrameType) -> _Shape | None:
        key = (frame.f_code, frame.f_lasti)
        if key not in self._shapes:
            self._shapes[key] = _read(frame.f_code, frame.f_lasti)
        return self._shapes[key]


def _read(code: CodeType, position: int) -> _Shape | None:
    """Decode the call instruction at `position`; None for calls with * or ** (their shape is not in the code)."""
    # A frame that waits for a call may stand at one of the caches behind its instruction.
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


def _likely(signature: inspect.Signature, values: dict[str, Any]) -> _Shape:
    """By position up to the last argument that is not its default."""
    n = 0
    for index, (name, parameter) in enumerate(signature.parameters.items(), 1):
        if parameter.kind is parameter.KEYWORD_ONLY:
            break
        if name in values and values[name] is not parameter.default:
            n = index
    return n, ()
