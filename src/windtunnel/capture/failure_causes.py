"""Whether a failure of the script rests on a value that no simulated device can know.

    reads of unknown values + the exception's traceback ──> the read that the failing line is computed from, if any

A read is the cause only if the source shows it: in a function that both went through, the failing line uses a name
that the reading line wrote, or happens because of a test on it. Everything else is the script's own.
"""

from __future__ import annotations

import ast
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, ModuleType, TracebackType
from typing import NamedTuple

from windtunnel.capture.source_names import chain_of, covers, overlap, targets_of, tree_of, uses_of

__all__ = ["Place", "cause_of"]

Chain = tuple[str, ...]
_NEVER = (
    ImportError,
    SyntaxError,
    NameError,
    NotImplementedError,
    OSError,
    MemoryError,
)  # no value leads to these


class Place(NamedTuple):
    """A line of one function on the stack."""

    code: CodeType
    line: int


def cause_of(error: BaseException, reads: Iterable[tuple[Place, ...]]) -> int | None:
    """Which of the reads (each the stack it happened on, innermost first; latest read first) the failure rests on."""
    if isinstance(error, _NEVER) or _is_missing_from_a_module(error):
        return None
    failed = [place for each in _chain_of_errors(error) for place in _places(each.__traceback__)]
    for i, stack in enumerate(reads):
        for depth, place in enumerate(stack):
            lines = {each.line for each in failed if each.code is place.code}
            if lines and any(_depends(place, line, depth == 0) for line in lines):
                return i
            if lines:
                break  # further out everything follows from everything
        if stack and _uses_attribute(stack[0], failed):
            return i
    return None


def _is_missing_from_a_module(error: BaseException) -> bool:
    """`torch.distributed.set_timeout`, in a torch that does not have it."""
    return isinstance(error, AttributeError) and isinstance(error.obj, ModuleType)


def _chain_of_errors(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def _places(trace: TracebackType | None) -> Iterator[Place]:
    for frame, line in traceback.walk_tb(trace):
        yield Place(frame.f_code, line)


def _depends(read: Place, line: int, is_innermost: bool) -> bool:
    """Whether a line of a function is computed from what another line of it reads."""
    body = _body(read)
    if body is None:
        return False
    statements = list(_statements(body, ()))
    source = _at(statements, read.line)
    target = _at(statements, line)
    if source is None or target is None:
        return False
    if source is target:
        return True
    tainted = set(source.written) | (set(source.receivers) if is_innermost else set())
    grew = True
    while grew:
        grew = False
        for each in statements:
            new = {*each.written, *each.receivers} - tainted
            if new and (each is source or _reads(each, tainted)):
                if each is source and not is_innermost:
                    new -= set(each.receivers)
                grew = grew or bool(new)
                tainted |= new
    is_tested = any(covers(test, read.line) for test in target.controls)
    return is_tested or _reads(target, tainted)


@dataclass(eq=False)
class _Statement:
    node: ast.stmt
    written: list[Chain]
    receivers: list[Chain]  # `losses.append(x)` writes to `losses`
    read: list[Chain]
    controls: tuple[ast.expr, ...]


def _reads(statement: _Statement, tainted: set[Chain]) -> bool:
    controls = [use.chain for test in statement.controls for use in uses_of(test)]
    return any(overlap(chain, each) for chain in (*statement.read, *controls) for each in tainted)


def _at(statements: list[_Statement], line: int) -> _Statement | None:
    """The innermost statement on a line; of a compound statement only its head counts."""
    found = [each for each in statements if covers(each.node, line)]
    return found[-1] if found else None


def _body(place: Place) -> list[ast.stmt] | None:
    """The statements of the function that a code object was made from."""
    tree = tree_of(place.code.co_filename)
    if tree is None:
        return None
    if place.code.co_name == "<module>":
        return tree.body
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == place.code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if place.code.co_firstlineno in (first, node.lineno):
                return node.body
    return None


def _statements(body: Iterable[ast.stmt], controls: tuple[ast.expr, ...]) -> Iterator[_Statement]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        written, heads = _head(node)
        read = [use.chain for head in heads for use in uses_of(head)]
        receivers = []
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            func = node.value.func
            chain = chain_of(func.value) if isinstance(func, ast.Attribute) else None
            receivers = [chain] if chain is not None else []
            read = [use.chain for each in _arguments(node.value) for use in uses_of(each)] + receivers
        yield _Statement(node, written, receivers, read, controls)
        test = getattr(node, "test", None) or getattr(node, "subject", None)
        inner = (*controls, test) if isinstance(test, ast.expr) and hasattr(node, "body") else controls
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, name, []), inner)
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from _statements(part.body, inner)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _head(node: ast.stmt) -> tuple[list[Chain], list[ast.expr]]:
    """What a statement writes, and its own expressions, without those of the statements in it."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets, heads = node.targets, [node.value]
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets, heads = [node.target], [each for each in (node.value, node.target) if each is not None]
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        targets, heads = [node.target], [node.iter]
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
        heads = [item.context_expr for item in node.items]
    else:
        heads = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
    subscripts = [each for each in targets if isinstance(each, ast.Subscript)]
    return [chain for target in targets for chain in targets_of(target)], [*heads, *subscripts]


def _uses_attribute(read: Place, failed: list[Place]) -> bool:
    """`self.n = lengths.max().item()` in one method, and a failing line of another that uses `self.n`.

    Only within one file: elsewhere an attribute of that name is most often another object's.
    """
    body = _body(read)
    source = _at(list(_statements(body, ())), read.line) if body is not None else None
    names = {chain[-1] for chain in source.written if len(chain) > 1} if source is not None else set()
    if not names:
        return False
    for place in failed:
        if place.code.co_filename != read.code.co_filename:
            continue
        inside = _body(place)
        statement = _at(list(_statements(inside, ())), place.line) if inside is not None else None
        if statement is not None and any(len(c) > 1 and names & set(c[1:]) for c in statement.read):
            return True
    return False
