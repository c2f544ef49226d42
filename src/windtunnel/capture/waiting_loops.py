"""Find loops that wait for a value which no simulated device computes: they would never end.

    a line reads an unknown value again and again ──> the loop around it ──> does anything else that decides its end change?

`while loss.item() > 0.5` waits; `for batch in loader: total += loss.item()` does not, nor does a loop that counts, or
whose texts grow up to a limit. Where the source does not tell, a loop counts as one that ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from windtunnel.capture.loop_conditions import LoopConditions, loop_around
from windtunnel.capture.source_names import CALL, RECEIVER, SHAPE, Use

__all__ = ["MODULE", "TENSOR", "FrameworkState", "Waiting", "WaitingLoops"]

# What a framework's own object adds to the state of a loop: (kind, value, shape); None: it is not the framework's.
FrameworkState = Callable[[object], "tuple[str, Any, Any] | None"]
TENSOR, MODULE = "tensor", "module"

_ROUNDS = 8  # reads one after the other, between which nothing changes
_VOLATILE = frozenset({"time", "random", "datetime", "secrets", "numpy.random", "queue", "socket", "select"})
_LIBRARIES = ("torch", "numpy", "math", "builtins", "operator", "itertools", "functools", "windtunnel")
_DEPTH, _MOST_PARTS, _FEW = 4, 2000, 16
_MISSING = ("missing",)
_SCALARS = (bool, int, float, complex, str, bytes, type(None))


@dataclass
class Waiting:
    """A loop that waits."""

    file: str
    line: int
    is_again: bool  # it did not end when the value was answered with 0


@dataclass
class _Seen:
    loop: LoopConditions
    frame: int
    state: object
    n_rounds: int = 0


@dataclass
class WaitingLoops:
    """Looks at the loops of one rank."""

    is_library: Callable[[str], bool]  # files whose loops are not the user's
    framework_state: FrameworkState = lambda value: None
    _seen: dict[tuple[str, int], _Seen] = field(default_factory=dict)  # a line may be called from several
    _ended: dict[str, object] = field(
        default_factory=dict
    )  # line -> the state around its loop, when 0 was the answer

    def look(self, where: str, frame: FrameType | None) -> Waiting | None:
        """Called for a read of an unknown value; the loop that waits for it, after a few calls without any change."""
        found = self._loop(frame)
        if found is None or found[1].ends_by_itself:
            return None
        holder, loop = found
        if holder.f_lineno not in loop.lines:
            return None
        place = (where, holder.f_lasti)
        state = _State(self.framework_state).of_loop(holder, loop)
        seen = self._seen.get(place)
        if seen is None or seen.loop is not loop or seen.frame != id(holder) or seen.state != state:
            self._seen[place] = _Seen(loop, id(holder), state)
            return None
        seen.n_rounds += 1
        if state is None or seen.n_rounds < _ROUNDS - 1:
            return None
        del self._seen[place]
        around = _State(self.framework_state).around(holder, loop)
        is_again = self._ended.get(where) == around
        self._ended[where] = around
        return Waiting(loop.file, loop.line, is_again)

    def _loop(self, frame: FrameType | None) -> tuple[FrameType, LoopConditions] | None:
        """The innermost loop on the stack, from the line that reads outwards."""
        while frame is not None:
            if not self.is_library(frame.f_code.co_filename):
                loop = loop_around(frame)
                if loop is not None:
                    return frame, loop
            frame = frame.f_back
        return None


class _State:
    """What a loop's end depends on, as values that can be compared."""

    def __init__(self, framework_state: FrameworkState) -> None:
        self._framework_state = framework_state
        self._n_parts = 0
        self._is_hidden = False  # a function that is called may look at more than can be seen here

    def of_loop(self, frame: FrameType, loop: LoopConditions) -> object:
        """None: it cannot be told, or it changes by itself (the time)."""
        with _Names(frame) as names:
            found = {use: names.find(use.chain) for use in loop.uses}
            if any(self._is_volatile(use, value) for use, value in found.items()):
                return None
            self._is_hidden = any(self._hides(use, value) for use, value in found.items())
            state = {use: self._of_use(use, value) for use, value in found.items()}
            return None if self._n_parts > _MOST_PARTS else state

    def around(self, frame: FrameType, loop: LoopConditions) -> object:
        """Numbers outside the loop, in its function and those that called it: they tell one run of the loop from the next."""
        found: list[Any] = []
        each: FrameType | None = frame
        while each is not None:
            with _Names(each) as names:
                inside = loop.assigned if each is frame else set()
                found += [(name, v) for name, v in names.scalars() if name not in inside]
            found.append((id(each), each.f_lasti if each is not frame else 0))
            each = each.f_back
        return found

    def _is_volatile(self, use: Use, value: object) -> bool:
        if isinstance(value, ModuleType):
            return use.how == RECEIVER and value.__name__ in _VOLATILE
        module = getattr(value, "__module__", None)
        return use.how == CALL and (module in _VOLATILE or value is input)

    def _hides(self, use: Use, value: object) -> bool:
        """Whether a call may look at more of its arguments than the values of tensors."""
        kind = self._framework_state(value)
        if use.how == CALL:
            if kind is not None or isinstance(value, (BuiltinFunctionType, type)) or value is _MISSING:
                return False
            return not str(getattr(value, "__module__", "")).startswith(_LIBRARIES)
        if use.how != RECEIVER or isinstance(value, (*_SCALARS, list, dict, tuple, set)):
            return False
        if isinstance(value, ModuleType):
            return not value.__name__.startswith(_LIBRARIES)
        return kind is None or kind[0] == MODULE

    def _of_use(self, use: Use, value: object) -> object:
        if use.how == SHAPE:
            kind = self._framework_state(value)
            return kind[2] if kind is not None else self._length(value)
        return self._describe(value, _DEPTH)

    def _describe(self, value: Any, depth: int) -> object:
        self._n_parts += 1
        if isinstance(value, _SCALARS):
            return type(value).__name__, repr(value)
        framework = self._framework_state(value)
        if framework is not None:
            kind, state, shape = framework
            return (kind, state, shape) if self._is_hidden else (kind, state)
        if isinstance(value, (BuiltinFunctionType, type, ModuleType)) or value is _MISSING:
            return "constant"
        if isinstance(value, MethodType):
            return self._describe(value.__self__, depth)
        if isinstance(value, FunctionType):
            return self._of_function(value)
        if hasattr(value, "__next__"):
            return "iterator"  # what it gives is unknown or is in a name; when it is exhausted, it raises
        if hasattr(value, "tobytes") and hasattr(value, "shape"):  # numpy
            return value.shape, value.tobytes() if getattr(value, "size", _FEW + 1) <= 4 * _FEW else None
        if depth == 0 or self._n_parts > _MOST_PARTS:
            return self._length(value)
        if isinstance(value, dict):
            return len(value), [
                (str(k), self._describe(v, depth - 1)) for k, v in list(value.items())[-_FEW:]
            ]
        if isinstance(value, (list, tuple)):
            return len(value), [self._describe(v, depth - 1) for v in value[-_FEW:]]
        parts = getattr(value, "__dict__", None)
        if not isinstance(parts, dict):
            return self._length(value)
        return [(name, self._describe(part, depth - 1)) for name, part in list(parts.items())]

    def _of_function(self, function: FunctionType) -> object:
        """The numbers that a function keeps outside itself."""
        names = function.__code__.co_names
        outside = [function.__globals__.get(name, _MISSING) for name in names]
        for cell in function.__closure__ or ():
            try:
                outside.append(cell.cell_contents)
            except ValueError:
                continue  # not assigned yet
        return [(type(v).__name__, repr(v)) for v in outside if isinstance(v, _SCALARS)] + [
            self._length(v) for v in outside if isinstance(v, (list, dict, set, tuple))
        ]

    def _length(self, value: Any) -> object:
        try:
            return len(value)
        except Exception:  # the user's own object may raise anything
            return type(value).__name__


class _Names:
    """The names that a frame sees, without keeping what they refer to alive."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame

    def __enter__(self) -> _Names:
        self._locals = self._frame.f_locals
        return self

    def __exit__(self, *_: object) -> None:
        # Before Python 3.13 this dictionary is a copy that lives as long as the frame: tensors in it would not be freed.
        if sys.version_info < (3, 13) and self._frame.f_code.co_flags & CO_OPTIMIZED:
            self._locals.clear()
        del self._locals

    def scalars(self) -> Iterator[tuple[str, str]]:
        for name, value in list(self._locals.items()):
            if isinstance(value, _SCALARS):
                yield name, repr(value)

    def find(self, chain: tuple[str, ...]) -> Any:
        """The value of a chain of attributes; of the object that has a property, if one is met."""
        root = chain[0]
        for names in (self._locals, self._frame.f_globals, self._frame.f_builtins):
            if root in names:
                value: Any = names[root]
                break
        else:
            return _MISSING
        for name in chain[1:]:
            parts = getattr(value, "__dict__", None)
            if not isinstance(parts, dict) or name not in parts:
                return value
            value = parts[name]
        return value
