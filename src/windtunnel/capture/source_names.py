"""Which names a line of the user's source reads and writes.

    file ──> its syntax tree      expression ──> Use: names and chains of attributes, and how they are read
    assignment target ──> chains  statement ──> its lines

Nothing is executed here.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "CALL",
    "RECEIVER",
    "SHAPE",
    "VALUE",
    "Use",
    "chain_of",
    "covers",
    "lines_of",
    "overlap",
    "targets_of",
    "tree_of",
    "uses_of",
]

VALUE, SHAPE, CALL, RECEIVER = "value", "shape", "call", "receiver"
_SHAPES = frozenset({"shape", "size", "numel", "nelement", "dim", "ndim", "__len__"})
_trees: dict[str, ast.Module | None] = {}


@dataclass(frozen=True)
class Use:
    """A name, or a chain of attributes, that an expression reads."""

    chain: tuple[str, ...]  # ("self", "loss")
    how: str  # its VALUE, its SHAPE; or it is called (CALL), or a method of it is (RECEIVER)
    method: str = ""


def tree_of(filename: str) -> ast.Module | None:
    if filename not in _trees:
        try:
            _trees[filename] = ast.parse("".join(linecache.getlines(filename)))
        except (SyntaxError, ValueError):
            _trees[filename] = None
    return _trees[filename]


def covers(node: ast.AST, line: int) -> bool:
    if isinstance(node, ast.match_case):
        return any(covers(each, line) for each in node.body)
    return getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", None) or 0)


def lines_of(node: ast.AST) -> set[int]:
    first = getattr(node, "lineno", 0)
    return set(range(first, (getattr(node, "end_lineno", None) or first) + 1))


def overlap(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    n = min(len(a), len(b))
    return a[:n] == b[:n]


def targets_of(target: ast.expr) -> Iterator[tuple[str, ...]]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for each in target.elts:
            yield from targets_of(each)
    elif isinstance(target, (ast.Starred, ast.Subscript)):
        yield from targets_of(target.value)
    else:
        chain = chain_of(target)
        if chain is not None:
            yield chain


def _as_read(target: ast.expr) -> ast.expr:
    return target.value if isinstance(target, ast.Subscript) else target


def chain_of(node: ast.AST) -> tuple[str, ...] | None:
    """`self.model.config` -> its names; None for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else None


def uses_of(node: ast.AST) -> Iterator[Use]:
    """The names that an expression reads, and how."""
    if isinstance(node, ast.Call):
        yield from _uses_of_call(node)
        return
    chain = chain_of(node)
    if chain is not None:
        is_shape = len(chain) > 1 and chain[-1] in _SHAPES
        yield Use(chain[:-1], SHAPE) if is_shape else Use(chain, VALUE)
        return
    for child in ast.iter_child_nodes(node):
        yield from uses_of(child)


def _uses_of_call(call: ast.Call) -> Iterator[Use]:
    func, arguments = call.func, [*call.args, *(keyword.value for keyword in call.keywords)]
    if isinstance(func, ast.Name):
        if func.id == "len" and len(arguments) == 1 and (measured := chain_of(arguments[0])) is not None:
            yield Use(measured, SHAPE)
            return
        yield Use((func.id,), CALL)
    elif isinstance(func, ast.Attribute):
        receiver = chain_of(func.value)
        if receiver is None:
            yield from uses_of(func.value)
        elif func.attr in _SHAPES:
            yield Use(receiver, SHAPE)
        else:
            yield Use(receiver, RECEIVER, func.attr)
    else:
        yield from uses_of(func)
    for argument in arguments:
        yield from uses_of(argument)
