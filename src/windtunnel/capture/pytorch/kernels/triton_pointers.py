"""Which pointers a Triton kernel reads and which it writes, from its source.

    source, values of its constants ──> names followed through assignments and calls ──> Accesses

A pointer passes through arithmetic, `tl.make_block_ptr`, tensor descriptors and functions of the kernel's own. Branches that
constants decide are taken as they decide. What cannot be followed counts as read and written.
"""

from __future__ import annotations

import ast
import builtins
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["POINTER", "Accesses", "Function", "accesses_in_source", "accesses_of", "tested_names"]

POINTER = (
    object()
)  # in place of a tensor among the constants: `if bias is not None` is decided, its value is not
_NOTHING: frozenset[str] = frozenset()
_DEEPEST = 12  # calls of functions by functions

_LOADS = frozenset("load load_tensor_descriptor descriptor_load gather descriptor_gather".split())
_STORES = frozenset("store store_tensor_descriptor descriptor_store scatter descriptor_scatter".split())
_BOTH = ("atomic_", "inline_asm", "reduce_")  # descriptor.reduce_add and similar
_NO_POINTERS = frozenset("dtype type shape strides element_ty block_shape".split())


@dataclass(frozen=True)
class Function:
    """A function of a kernel's source: its tree, and what names in it mean elsewhere."""

    tree: ast.FunctionDef
    find: Callable[[str], Any]  # a name -> what it means: another Function, a module, a constant, or None
    known: Callable[[Any], Any] = lambda found: found  # an object -> the Function that it is, or itself

    @staticmethod
    def parsed(
        source: str, find: Callable[[str], Any], known: Callable[[Any], Any] = lambda found: found
    ) -> Function | None:
        """The function that this source defines; None: it is no such source."""
        try:
            tree = ast.parse(textwrap.dedent(source))
        except (SyntaxError, ValueError):
            return None
        defined = next((each for each in tree.body if isinstance(each, ast.FunctionDef)), None)
        return None if defined is None else Function(defined, find, known)

    @property
    def parameters(self) -> list[str]:
        a = self.tree.args
        return [each.arg for each in (*a.posonlyargs, *a.args, *a.kwonlyargs)]


@dataclass(frozen=True)
class Accesses:
    """Parameters by name: those whose memory is read, written, or handed back to the caller."""

    reads: frozenset[str]
    writes: frozenset[str]
    returns: frozenset[str] = _NOTHING


def accesses_of(function: Function, constants: Mapping[str, Any], depth: int = 0) -> Accesses:
    """What the function does with the memory behind its parameters."""
    everything = frozenset(function.parameters)
    if depth > _DEEPEST:
        return Accesses(everything, everything, everything)
    follower = _Follower(function, constants, depth)
    for _ in range(len(everything) + 8):  # loops carry pointers from one round to the next
        before = (dict(follower.origins), len(follower.reads), len(follower.writes))
        follower.follow(function.tree.body)
        if before == (follower.origins, len(follower.reads), len(follower.writes)):
            break
    return Accesses(frozenset(follower.reads), frozenset(follower.writes), frozenset(follower.returns))


def accesses_in_source(source: str, name: str) -> Accesses | None:
    """Of one of the functions that a source defines, which may call the others; None: it defines no such function."""
    try:
        tree = ast.parse(textwrap.dedent(source))
    except (SyntaxError, ValueError):
        return None
    functions: dict[str, Any] = {}
    functions |= {
        each.name: Function(each, functions.get) for each in tree.body if isinstance(each, ast.FunctionDef)
    }
    return accesses_of(functions[name], {}) if name in functions else None


def tested_names(function: Function) -> list[str]:
    """Parameters that decide branches here and are not assigned: their values choose among Accesses."""
    tests = [each.test for each in ast.walk(function.tree) if isinstance(each, (ast.If, ast.IfExp))]
    names = {each.id for test in tests for each in ast.walk(test) if isinstance(each, ast.Name)}
    calls = [each for each in ast.walk(function.tree) if isinstance(each, ast.Call)]
    passed = [value for call in calls for value in (*call.args, *(k.value for k in call.keywords))]
    names |= {each.id for each in passed if isinstance(each, ast.Name)}  # for the tests of what it calls
    stored = {
        each.id
        for each in ast.walk(function.tree)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    return [name for name in function.parameters if name in names - stored]


class _Follower:
    def __init__(self, function: Function, constants: Mapping[str, Any], depth: int) -> None:
        self.function, self.depth = function, depth
        self.constants = {
            name: constants[name] for name in tested_names(function) if name in constants
        }  # of others the value may have changed
        self.origins: dict[str, frozenset[str]] = {name: frozenset({name}) for name in function.parameters}
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self.returns: set[str] = set()

    # -- statements ------------------------------------------------------------------------------------------

    def follow(self, statements: Iterable[ast.stmt]) -> None:
        for each in statements:
            self._statement(each)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            self._add(node.target, self._origins(node.value))
        elif isinstance(node, ast.For):
            self._add(node.target, self._origins(node.iter))
            self.follow([*node.body, *node.orelse])
        elif isinstance(node, ast.While):
            self._origins(node.test)
            self.follow([*node.body, *node.orelse])
        elif isinstance(node, ast.If):
            decided = self._decide(node.test)
            self._origins(node.test)
            self.follow([] if decided is False else node.body)
            self.follow([] if decided is True else node.orelse)
        elif isinstance(node, ast.With):
            self.follow(node.body)
        elif isinstance(node, ast.Return) and node.value is not None:
            self.returns |= self._origins(node.value)
        elif isinstance(node, ast.Expr):
            self._origins(node.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if (
            isinstance(target, ast.Tuple)
            and isinstance(value, ast.Tuple)
            and len(target.elts) == len(value.elts)
        ):
            for one, its in zip(target.elts, value.elts, strict=True):
                self._assign(one, its)
        else:
            self._add(target, self._origins(value))

    def _add(self, target: ast.expr, origins: frozenset[str]) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self._add(each, origins)
        elif isinstance(target, (ast.Subscript, ast.Attribute, ast.Starred)):
            self._add(target.value, origins)
        elif isinstance(target, ast.Name):
            self.origins[target.id] = self.origins.get(target.id, _NOTHING) | origins

    def _decide(self, test: ast.expr) -> bool | None:
        """What a branch decides, where its names are constants."""
        names = {each.id for each in ast.walk(test) if isinstance(each, ast.Name)}
        values = {}
        for name in names:
            value = self.constants[name] if name in self.constants else self.function.find(name)
            value = getattr(value, "value", value)  # a constexpr
            if name not in self.constants and not isinstance(value, (bool, int, float, str)):
                return None
            values[name] = value
        allowed = (
            ast.Name, ast.Load, ast.Constant, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare,
            ast.cmpop, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Mod, ast.FloorDiv,
        )  # fmt: skip
        if not all(isinstance(each, allowed) for each in ast.walk(test)):
            return None
        if not _asks_for_none(test, {name for name, value in values.items() if value is POINTER}):
            return None
        try:
            return bool(eval(compile(ast.Expression(test), "<test>", "eval"), {"__builtins__": {}}, values))
        except Exception:
            return None

    # -- expressions -----------------------------------------------------------------------------------------

    def _origins(self, node: ast.AST) -> frozenset[str]:
        """The parameters that this value may point into."""
        if isinstance(node, ast.Name):
            return self.origins.get(node.id, _NOTHING)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Attribute):
            found = self._origins(node.value)
            return _NOTHING if node.attr in _NO_POINTERS else found
        if isinstance(node, ast.IfExp) and (decided := self._decide(node.test)) is not None:
            return self._origins(node.body if decided else node.orelse)
        return self._all(ast.iter_child_nodes(node))

    def _all(self, nodes: Iterable[ast.AST]) -> frozenset[str]:
        return _NOTHING.union(*(self._origins(each) for each in nodes))

    def _call(self, node: ast.Call) -> frozenset[str]:
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        name = _last_name(node.func)
        called = self._called(node.func)
        if isinstance(called, Function):
            return self._own_function(node, called)
        is_method = isinstance(node.func, ast.Attribute) and called is None
        owner = (
            self._origins(node.func.value) if is_method and isinstance(node.func, ast.Attribute) else _NOTHING
        )
        origins = [self._origins(each) for each in arguments]
        everything = owner.union(*origins)
        # `ptr.load(...)`, or `tl.load(ptr, ...)` with the pointer first or by name
        pointer = owner or self._pointer(node) or (origins[0] if origins else _NOTHING)
        if name in _LOADS:
            self.reads |= pointer
            return _NOTHING
        if name in _STORES:
            self.writes |= pointer
            return _NOTHING
        if (
            name.startswith(_BOTH)
            or name.endswith("async_copy")
            or self._is_unknown(node.func, called, owner)
        ):
            self.reads |= everything
            self.writes |= everything
        return everything

    def _pointer(self, node: ast.Call) -> frozenset[str]:
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        return next((self._origins(given[name]) for name in ("pointer", "desc") if name in given), _NOTHING)

    def _called(self, node: ast.expr) -> Any:
        """What is called, looked up outside the function; None: a method of a value, or not known."""
        if isinstance(node, ast.Name):
            if isinstance(self.constants.get(node.id), Function):
                return self.constants[node.id]  # a function passed as a constant
            return None if node.id in self.origins else self.function.find(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._called(node.value)
            if owner is None or isinstance(owner, Function):
                return None
            return self.function.known(getattr(owner, node.attr, None))
        return None

    def _is_unknown(self, node: ast.expr, called: Any, owner: frozenset[str]) -> bool:
        """A function of somebody else's, which may do anything with a pointer. Triton's own and methods do nothing more."""
        if called is None:
            return isinstance(node, ast.Name) and not hasattr(builtins, node.id) and not owner
        module = getattr(called, "__module__", None) or ""
        return "gluon" in module or "experimental" in module

    def _own_function(self, node: ast.Call, called: Function) -> frozenset[str]:
        names = called.parameters
        given: dict[str, ast.expr] = dict(zip(names, node.args, strict=False))
        given |= {k.arg: k.value for k in node.keywords if k.arg is not None}
        constants: dict[str, Any] = {}
        for name, value in given.items():
            if isinstance(value, ast.Constant):
                constants[name] = value.value
            elif isinstance(value, ast.Name) and value.id in self.constants:
                constants[name] = self.constants[value.id]
        found = accesses_of(called, constants, self.depth + 1)
        origins = {name: self._origins(value) for name, value in given.items()}
        self.reads |= _NOTHING.union(*(origins.get(name, _NOTHING) for name in found.reads))
        self.writes |= _NOTHING.union(*(origins.get(name, _NOTHING) for name in found.writes))
        return _NOTHING.union(*(origins.get(name, _NOTHING) for name in found.returns))


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _asks_for_none(test: ast.expr, pointers: set[str]) -> bool:
    """Pointers in it are only compared with None: what lies behind them is not known."""
    asked = {
        compare.left.id
        for compare in ast.walk(test)
        if isinstance(compare, ast.Compare)
        and isinstance(compare.left, ast.Name)
        and all(isinstance(op, (ast.Is, ast.IsNot)) for op in compare.ops)
    }
    return pointers <= asked
