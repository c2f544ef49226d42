"""Check that the fields of records read from a file have their declared types: the file may come from someone else.

RunResult as read ──> check_record ──> ValueError that names the first field with a wrong type
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from windtunnel.report.results.time import RankTimeResult, late_types

__all__ = ["check_record"]

_Check = Callable[[Any, str], None]
_BEYOND = 1e30  # more than the bytes, flops or seconds of any machine; sums and products of less stay finite


def check_record(record: Any, where: str = "") -> None:
    """Check every field of a dataclass, and of the dataclasses inside it."""
    kind: Any = type(record)
    for name, check in _checks(kind):
        check(getattr(record, name), f"{where}.{name}" if where else name)


@cache
def _checks(record: Any) -> tuple[tuple[str, _Check], ...]:
    hints = get_type_hints(record, localns=late_types() if record is RankTimeResult else None)
    return tuple((f.name, _check_of(hints[f.name])) for f in fields(record))


@cache
def _check_of(hint: Any) -> _Check:
    """Return the check for a value of this type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _any_of(inner)
    if origin is tuple:
        return _each(_check_of(inner[0]))
    if origin is dict:
        return _values(_check_of(inner[1]))
    if is_dataclass(hint):
        return _record(hint)
    return _plain(hint)


def _any_of(hints: tuple[Any, ...]) -> _Check:
    kinds = [hint for hint in hints if hint is not NoneType]
    one = _check_of(kinds[0])

    def check(value: Any, where: str) -> None:
        if value is None and NoneType in hints:
            return
        if len(kinds) == 1:
            one(value, where)
        elif type(value) not in kinds:  # a value of the user's program: only shown, never computed with
            raise ValueError(f"{where} is {value!r:.60}, not a plain value")

    return check


def _each(one: _Check) -> _Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, tuple):
            raise ValueError(f"{where} is {value!r:.60}, not a list")
        for i, each in enumerate(value):
            one(each, f"{where}[{i}]")

    return check


def _values(one: _Check) -> _Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {value!r:.60}, not a table")
        for key, each in value.items():
            one(each, f"{where}[{key!r:.60}]")

    return check


def _record(hint: Any) -> _Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, hint):
            raise ValueError(f"{where} is {value!r:.60}, not a {hint.__name__}")
        check_record(value, where)

    return check


def _plain(hint: Any) -> _Check:
    words = {int: "a non-negative integer", float: "a number", bool: "true or false", str: "a string"}

    def check(value: Any, where: str) -> None:
        if not _is_plain(value, hint):
            raise ValueError(f"{where} is {value!r:.60}, not {words.get(hint, 'columns of numbers')}")

    return check


def _is_plain(value: Any, hint: Any) -> bool:
    if hint is int:
        return type(value) is int and 0 <= value < _BEYOND
    if hint is float:
        return type(value) in (int, float) and -_BEYOND < value < _BEYOND
    if hint is np.ndarray:
        return isinstance(value, np.ndarray)
    return type(value) is hint
