"""Small arithmetic over named dimensions: how a table describes the size of a workspace.

    "b * h * round_up(sq, 128) * 4" ──> parse ──> Expression(names) ──> value(dimensions) ──> a number

Text comes from files of others, so nothing is handed to Python's own evaluator: the syntax tree is walked here, and
what is not listed below is refused when the text is read, not when it is used.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

__all__ = ["FUNCTIONS", "Expression", "NotANumber", "parse"]

_LONGEST = 1000  # characters: more than anyone writes by hand
_DEEPEST = 60  # levels of the tree: it is walked by recursion
_LARGEST = 1 << 60  # of any number on the way: a byte count above it is a mistake


def _ceil_div(a: float, b: float) -> float:
    return -(-a // b)


def _round_up(a: float, unit: float) -> float:
    return -(-a // unit) * unit


FUNCTIONS: dict[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "ceil_div": _ceil_div,
    "round_up": _round_up,
}
_N_ARGUMENTS = {"ceil_div": 2, "round_up": 2}
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class NotANumber(Exception):
    """An expression cannot be read or has no value; the message is the fact, without a subject."""


@dataclass(frozen=True, slots=True)
class Expression:
    """Arithmetic that was checked when it was read."""

    text: str
    names: frozenset[str]
    tree: ast.expr

    def value(self, dimensions: Mapping[str, float]) -> float:
        """Raises `NotANumber`, also for a name that `dimensions` does not have."""
        try:
            return _evaluate(self.tree, dimensions)
        except ZeroDivisionError:
            raise NotANumber(f"{self.text!r} divides by zero") from None
        except KeyError as error:
            raise NotANumber(f"it has no {error.args[0]!r}") from None


def parse(text: str) -> Expression:
    """Read an expression; raises `NotANumber` for what is not arithmetic."""
    if len(text) > _LONGEST:
        raise NotANumber(f"is {len(text)} characters long; the limit is {_LONGEST}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise NotANumber(f"{text!r} is not an expression") from None
    names: set[str] = set()
    _check(tree, names, _DEEPEST)
    return Expression(text.strip(), frozenset(names), tree)


def _check(node: ast.AST, names: set[str], n_levels: int) -> None:
    if n_levels == 0:
        raise NotANumber(f"it is nested more than {_DEEPEST} levels deep")
    match node:
        case ast.Constant(value=bool() | int() | float() as number) if abs(number) <= _LARGEST:
            return
        case ast.Name():
            names.add(node.id)
            return
        case ast.BinOp() if type(node.op) in _BINARY:
            parts = [node.left, node.right]
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            parts = [node.operand]
        case ast.BoolOp():
            parts = node.values
        case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
            parts = [node.left, *node.comparators]
        case ast.IfExp():
            parts = [node.test, node.body, node.orelse]
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if name in FUNCTIONS:
            wanted = _N_ARGUMENTS.get(name)
            if len(parts) < 2 or (wanted and len(parts) != wanted):
                raise NotANumber(f"{name} takes {wanted or 'two or more'} numbers, not {len(parts)}")
        case _:
            raise NotANumber(f"{ast.unparse(node)[:60]!r} is not allowed")
    for part in parts:
        _check(part, names, n_levels - 1)


def _evaluate(node: ast.expr, at: Mapping[str, float]) -> float:
    match node:
        case ast.Constant():
            return cast(float, node.value)
        case ast.Name():
            return at[node.id]
        case ast.BinOp():
            result = _BINARY[type(node.op)](_evaluate(node.left, at), _evaluate(node.right, at))
        case ast.UnaryOp(op=ast.Not()):
            return not _evaluate(node.operand, at)
        case ast.UnaryOp():
            return -_evaluate(node.operand, at)
        case ast.BoolOp(op=ast.And()):
            return all(_evaluate(part, at) for part in node.values)
        case ast.BoolOp():
            return any(_evaluate(part, at) for part in node.values)
        case ast.Compare():
            return _compare(node, at)
        case ast.IfExp():
            return _evaluate(node.body if _evaluate(node.test, at) else node.orelse, at)
        case _:
            call = cast(ast.Call, node)  # `parse` lets nothing else through
            result = FUNCTIONS[cast(ast.Name, call.func).id](*(_evaluate(part, at) for part in call.args))
    if not math.isfinite(result) or abs(result) > _LARGEST:
        raise NotANumber(f"{ast.unparse(node)!r} is larger than any memory")
    return result


def _compare(node: ast.Compare, at: Mapping[str, float]) -> bool:
    left = _evaluate(node.left, at)
    for op, part in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(part, at)
        if not _COMPARISONS[type(op)](left, right):
            return False
        left = right
    return True
