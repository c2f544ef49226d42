"""What decides when a loop of the user's program ends, from its source.

    the line of a frame ──> the innermost loop around it ──> LoopConditions: the names that its end depends on

The end depends on the test of a `while` and on the tests around every `break`, `return` and `raise`; and on what the
names in them are computed from, as far as that happens in the loop. Nothing is executed here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FrameType

from windtunnel.capture.source_names import (
    Use,
    chain_of,
    covers,
    lines_of,
    overlap,
    targets_of,
    tree_of,
    uses_of,
)

__all__ = ["LoopConditions", "loop_around"]

_ENDLESS = frozenset({"count", "cycle", "repeat"})  # of itertools
_LEAVING = frozenset({"exit", "quit", "_exit"})
_Loop = ast.While | ast.For | ast.AsyncFor
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class LoopConditions:
    """One loop of the program."""

    file: str
    line: int
    lines: set[int] = field(default_factory=set)  # that compute what its end depends on
    uses: set[Use] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)  # names that the loop writes
    ends_by_itself: bool = False  # a `for` over something finite, or an exit that no visible test decides


def loop_around(frame: FrameType) -> LoopConditions | None:
    """The innermost loop around the line that a frame runs; None without one, or without its source."""
    code = frame.f_code
    key = (code.co_filename, code.co_firstlineno, frame.f_lineno)
    if key not in _loops:
        _loops[key] = _find(*key, code.co_name)
    return _loops[key]


_loops: dict[tuple[str, int, int], LoopConditions | None] = {}
_known: dict[
    tuple[str, int], LoopConditions
] = {}  # by file and line of the loop, so that a loop is one object


def _find(filename: str, first_line: int, line: int, function: str) -> LoopConditions | None:
    if function in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"):
        return LoopConditions(filename, line, ends_by_itself=True)
    tree = tree_of(filename)
    loop = _innermost(tree, line) if tree is not None else None
    if loop is None:
        return None
    if isinstance(loop, ast.expr):  # a comprehension
        return LoopConditions(filename, line, ends_by_itself=True)
    key = (filename, loop.lineno)
    if key not in _known:
        _known[key] = _analyse(filename, loop)
    return _known[key]


def _innermost(tree: ast.AST, line: int) -> _Loop | ast.expr | None:
    """The last loop on the way down to this line; a function or class on the way begins a frame of its own."""
    found: _Loop | ast.expr | None = None
    node: ast.AST | None = tree
    while node is not None:
        below: ast.AST | None = None
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)) and covers(child, line):
                below = child
            elif isinstance(child, ast.expr) and covers(child, line) and not isinstance(node, ast.Match):
                inner = [
                    each
                    for each in ast.walk(child)
                    if isinstance(each, _COMPREHENSIONS) and covers(each, line)
                ]
                found = inner[0] if inner else found
        if isinstance(below, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found = None
        elif isinstance(below, (ast.While, ast.For, ast.AsyncFor)) and _repeats(below, line):
            found = below
        node = below
    return found


def _repeats(loop: _Loop, line: int) -> bool:
    """Whether this line runs in every round: not what a `for` iterates over, and not the loop's `else`."""
    again: list[ast.AST] = [*loop.body, *([loop.test] if isinstance(loop, ast.While) else [])]
    return any(covers(node, line) for node in again)


def _analyse(filename: str, loop: _Loop) -> LoopConditions:
    found = LoopConditions(filename, loop.lineno)
    walk = _Walk()
    walk.statements(loop.body, (), False, 0)
    if isinstance(loop, ast.While):
        tests: list[ast.expr] = [loop.test]
    elif _is_endless(loop.iter):
        tests = []
        walk.assign([loop.target], [loop.iter], (), loop)
    else:
        found.ends_by_itself = True
        return found
    for controls, is_hidden in walk.exits:
        if is_hidden or not controls:
            found.ends_by_itself = True
        tests += controls
    found.assigned = {chain[0] for each in walk.assignments for chain in each.targets}
    _follow(found, tests, walk.assignments)
    if not found.uses or walk.yields:
        found.ends_by_itself = True  # nothing to watch: whoever started it, or an exception, ends it
    return found


def _is_endless(iterated: ast.expr) -> bool:
    if not isinstance(iterated, ast.Call):
        return False
    name = getattr(iterated.func, "attr", getattr(iterated.func, "id", ""))
    if name in ("enumerate", "tqdm"):
        return bool(iterated.args) and _is_endless(iterated.args[0])
    if name == "iter":
        return len(iterated.args) == 2
    return name in _ENDLESS and not (name == "repeat" and (len(iterated.args) > 1 or iterated.keywords))


def _follow(found: LoopConditions, tests: list[ast.expr], assignments: list[_Assignment]) -> None:
    """Collect the uses of the tests, and of everything in the loop that what they use is computed from."""
    for test in tests:
        found.uses |= set(uses_of(test))
        found.lines |= lines_of(test)
    left = list(assignments)
    grew = True
    while grew:
        grew = False
        chains = [use.chain for use in found.uses]
        for each in list(left):
            if any(overlap(target, chain) for target in each.targets for chain in chains):
                left.remove(each)
                grew = True
                for read in (*each.reads, *each.controls):
                    found.uses |= set(uses_of(read))
                found.lines |= each.lines


@dataclass
class _Assignment:
    targets: list[tuple[str, ...]]
    reads: list[ast.expr]
    controls: tuple[ast.expr, ...]  # tests that decide whether it happens
    lines: set[int]


class _Walk:
    """Collects assignments and exits of a loop's body."""

    def __init__(self) -> None:
        self.assignments: list[_Assignment] = []
        self.exits: list[tuple[tuple[ast.expr, ...], bool]] = []  # the tests around it; is it in a handler?
        self.yields = False

    def statements(
        self, body: Iterable[ast.stmt], controls: tuple[ast.expr, ...], is_handler: bool, depth: int
    ) -> None:
        for statement in body:
            self.statement(statement, controls, is_handler, depth)

    def statement(self, node: ast.stmt, controls: tuple[ast.expr, ...], is_handler: bool, depth: int) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return
        if isinstance(node, ast.Break):
            if depth == 0:
                self.exits.append((controls, is_handler))
        elif isinstance(node, (ast.Return, ast.Raise)):
            if isinstance(node, ast.Return) or not is_handler:
                self.exits.append((controls, is_handler))
        elif isinstance(node, (ast.If, ast.While)):
            inner = (*controls, node.test)
            self.statements(node.body, inner, is_handler, depth + isinstance(node, ast.While))
            self.statements(node.orelse, inner, is_handler, depth)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self.assign([node.target], [node.iter], controls, node.target)
            self.statements(node.body, (*controls, node.iter), is_handler, depth + 1)
            self.statements(node.orelse, controls, is_handler, depth)
        elif isinstance(node, ast.Try):
            self.statements([*node.body, *node.orelse, *node.finalbody], controls, is_handler, depth)
            for handler in node.handlers:
                self.statements(handler.body, controls, True, depth)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    self.assign([item.optional_vars], [item.context_expr], controls, item.context_expr)
            self.statements(node.body, controls, is_handler, depth)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                self.statements(case.body, (*controls, node.subject), is_handler, depth)
        else:
            self.simple(node, controls)

    def simple(self, node: ast.stmt, controls: tuple[ast.expr, ...]) -> None:
        for each in ast.walk(node):
            if isinstance(each, (ast.Yield, ast.YieldFrom)):
                self.yields = True
            elif isinstance(each, ast.NamedExpr):
                self.assign([each.target], [each.value], controls, node)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self.assign_each(target, node.value, controls, node)
        elif isinstance(node, ast.AugAssign):
            self.assign([node.target], [node.value, node.target], controls, node)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.assign([node.target], [node.value], controls, node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self.call(node.value, controls, node)

    def call(self, call: ast.Call, controls: tuple[ast.expr, ...], node: ast.stmt) -> None:
        """`losses.append(loss)` writes to `losses`; `sys.exit()` leaves the loop."""
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name in _LEAVING:
            self.exits.append((controls, False))
        elif isinstance(call.func, ast.Attribute):
            receiver = chain_of(call.func.value)
            if receiver is not None:
                reads = [*call.args, *(keyword.value for keyword in call.keywords), call.func.value]
                self.assignments.append(_Assignment([receiver], reads, controls, lines_of(node)))

    def assign_each(
        self, target: ast.expr, value: ast.expr, controls: tuple[ast.expr, ...], node: ast.stmt
    ) -> None:
        """`loss, n = next_loss, n + 1` are two assignments."""
        if (
            isinstance(target, ast.Tuple)
            and isinstance(value, ast.Tuple)
            and len(target.elts) == len(value.elts)
        ):
            for each, read in zip(target.elts, value.elts, strict=True):
                self.assign([each], [read], controls, node)
        else:
            self.assign([target], [value], controls, node)

    def assign(
        self, targets: list[ast.expr], reads: list[ast.expr], controls: tuple[ast.expr, ...], node: ast.AST
    ) -> None:
        chains = [chain for target in targets for chain in targets_of(target)]
        self.assignments.append(_Assignment(chains, reads, controls, lines_of(node)))
