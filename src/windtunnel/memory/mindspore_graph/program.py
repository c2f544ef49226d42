"""What a static graph does with memory: every operator that runs, what it makes and what it reads.

    GraphIr ──> calls inlined, names of the same memory joined ──> GraphProgram (storages, steps)

Nodes that only rename a value make no step: `Depend`, `Load`, `MakeTuple`, `TupleGetItem`, `UpdateState`, and
reshapes, which MindSpore serves without a copy. An operator that overwrites a parameter makes no new storage.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from windtunnel.errors import CorruptFile
from windtunnel.memory.mindspore_graph.ir_file import GraphIr, IrNode, Subgraph
from windtunnel.memory.mindspore_graph.ir_types import IrType, TensorType, parse_type

__all__ = ["GraphProgram", "Step", "Storage", "program_of"]

# Graphs that call each other, and tuples of tuples, can expand to far more than the lines of the file.
_MOST_NODES = 5_000_000  # once calls are inlined
_MOST_LINKS = 20_000_000  # from a tuple or an operator to a storage
_DEEPEST = 100  # calls inside calls, tuples inside tuples
_FORWARDS = {"Load", "Depend"}
_RESHAPES = {"Reshape", "ExpandDims", "Squeeze", "Flatten", "FlattenGrad"}
_TUPLES = {"MakeTuple", "MakeList"}
_ITEMS = {"TupleGetItem", "ListGetItem"}
_PARA = re.compile(r"%para(\d+)_")
_INDEX = re.compile(r"I64\((-?\d{1,9})\)")
_CONSTANT = re.compile(r"Tensor\(shape=\[([\d, ]*)\], dtype=(\w+),")


@dataclass(frozen=True, slots=True)
class Storage:
    """One piece of memory."""

    n_bytes: int
    line: int  # of the file: where it is made
    is_kept: bool = False  # a weight, a state of the optimizer, a constant
    is_input: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One operator that runs."""

    line: int
    op: str
    scope: str
    group: str | None
    makes: tuple[int, ...]  # indices of storages
    reads: tuple[int, ...]
    call: int  # which call of a subgraph it belongs to: 0 is the main one


@dataclass(frozen=True)
class GraphProgram:
    """A graph with all its calls inlined, in the order of the file."""

    storages: list[Storage]
    steps: list[Step]
    results: frozenset[int]  # storages that are still wanted when the step ends
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Many:
    """A tuple, or a function with the arguments it has so far, as a value."""

    items: tuple[_Value, ...]
    storages: tuple[int, ...]  # of all items, each once
    depth: int
    graph: str | None = None  # of a function


_Value = int | _Many | None  # int: a storage; None: on the host


@dataclass(slots=True)
class _Frame:
    """One call of a subgraph."""

    values: dict[int, _Value]
    parameters: dict[int, _Value]
    depth: int
    call: int


def program_of(graph: GraphIr) -> GraphProgram:
    """Inline every call and follow every value to the memory behind it."""
    return _Inliner(graph).run()


@dataclass
class _Inliner:
    graph: GraphIr
    storages: list[Storage] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)  # in the order they were met
    constants: dict[str, int] = field(default_factory=dict)
    named: dict[str, int] = field(default_factory=dict)  # parameters by ref_key
    stack: list[str] = field(default_factory=list)
    n_calls: int = 0
    n_nodes: int = 0
    n_links: int = 0

    def run(self) -> GraphProgram:
        parameters: dict[int, _Value] = {}
        for p in self.graph.parameters.values():
            value = self._store(p.type, p.line, is_kept=p.is_weight, is_input=not p.is_weight)
            parameters[p.number] = value
            if isinstance(value, int):
                self.named[p.name] = value
        result = self._call(self.graph.subgraphs[self.graph.entry], _Frame({}, parameters, 0, 0))
        return GraphProgram(self.storages, self.steps, frozenset(_storages_of(result)), tuple(self.notes))

    def _call(self, subgraph: Subgraph, frame: _Frame) -> _Value:
        self.stack.append(subgraph.name)
        for node in subgraph.nodes:
            self.n_nodes += 1
            if self.n_nodes > _MOST_NODES:
                raise self._corrupt(node.line, f"more than {_MOST_NODES:,} operators once calls are inlined")
            args = tuple(self._resolve(arg, frame, node) for arg in node.args)
            if node.op == "Return":
                self.stack.pop()
                return args[0] if args else None
            frame.values[node.number] = self._value(node, args, frame)
        raise AssertionError("the reader lets no subgraph through without Return")

    def _value(self, node: IrNode, args: tuple[_Value, ...], frame: _Frame) -> _Value:
        if node.op in _FORWARDS and args:
            return args[0]
        if node.op in _RESHAPES and args and self._is_made_by_a_step(args[0]):
            return args[0]
        if node.op in _TUPLES:
            return self._many(args, node.line)
        if node.op in _ITEMS:
            return self._item(node, args)
        if node.op == "UpdateState":
            return None
        if node.op == "Partial" and args and isinstance(args[0], _Many):
            return self._many((*args[0].items, *args[1:]), node.line, args[0].graph)
        if node.op == "Switch":
            return self._branch(args)
        if node.op.startswith("call @"):
            return self._enter(node, self._function(node.op.removeprefix("call @")), args, frame)
        if node.op.startswith("%"):
            called = self._resolve(node.op.partition("[")[0], frame, node)
            return self._enter(node, called, args, frame)
        return self._run(node, args, frame)

    def _is_made_by_a_step(self, value: _Value) -> bool:
        """A reshape of an input, a weight or a constant is a copy; any other is free."""
        if not isinstance(value, int):
            return False
        return not (self.storages[value].is_kept or self.storages[value].is_input)

    def _run(self, node: IrNode, args: tuple[_Value, ...], frame: _Frame) -> _Value:
        reads = self._join(args, node.line)
        n_before = len(self.storages)
        written = [arg for arg in args if isinstance(arg, int) and self.storages[arg].is_kept]
        result = self._store(node.result, node.line, overwritten=written if node.is_in_place else [])
        makes = tuple(range(n_before, len(self.storages)))
        self.steps.append(Step(node.line, node.op, node.scope, node.group, makes, reads, frame.call))
        return result

    def _enter(self, node: IrNode, called: _Value, args: tuple[_Value, ...], frame: _Frame) -> _Value:
        subgraph = self.graph.subgraphs.get(called.graph or "") if isinstance(called, _Many) else None
        if subgraph is None or not isinstance(called, _Many):
            raise self._corrupt(node.line, "it calls a graph that is not in the file")
        if subgraph.name in self.stack:
            self.notes["a loop is counted once: the file does not say how often it runs"] = None
            return self._run(node, args, frame)
        if frame.depth >= _DEEPEST:
            raise self._corrupt(node.line, f"more than {_DEEPEST} calls inside each other")
        bound = dict(zip(subgraph.parameters, (*called.items, *args), strict=False))
        self.n_calls += 1
        return self._call(subgraph, _Frame({}, bound, frame.depth + 1, self.n_calls))

    def _branch(self, args: tuple[_Value, ...]) -> _Value:
        """Which branch runs depends on a value; the longer one counts."""
        branches = [arg for arg in args if isinstance(arg, _Many) and arg.graph in self.graph.subgraphs]
        if not branches:
            return None
        self.notes["of two branches the longer one is counted: which one runs depends on values"] = None
        return max(branches, key=lambda branch: len(self.graph.subgraphs[branch.graph or ""].nodes))

    def _item(self, node: IrNode, args: tuple[_Value, ...]) -> _Value:
        index = _INDEX.fullmatch(node.args[1]) if len(node.args) == 2 else None
        if index is None or args[0] is None:
            return None
        items = args[0].items if isinstance(args[0], _Many) else ()
        if not -len(items) <= int(index.group(1)) < len(items):
            raise self._corrupt(node.line, f"{node.op} takes an item that the tuple does not have")
        return items[int(index.group(1))]

    def _resolve(self, text: str, frame: _Frame, node: IrNode) -> _Value:
        if text.startswith("%"):
            if found := _PARA.match(text):
                number = int(found.group(1))
                if number in frame.parameters:
                    return frame.parameters[number]
            elif text[1:].isdecimal() and int(text[1:]) in frame.values:
                return frame.values[int(text[1:])]
            raise self._corrupt(node.line, f"{text[:40]} is used but nothing makes it")
        if text.startswith("@"):
            return self._function(text[1:])
        if text.startswith("Tensor("):
            return self._constant(text, node)
        return None

    def _constant(self, text: str, node: IrNode) -> _Value:
        key = f"{text} {node.line}" if "..." in text else text  # a value that is not shown may be any
        if key not in self.constants:
            found = _CONSTANT.match(text)
            if found is None:
                return None
            type = _checked(self, node, f"<Tensor[{found.group(2)}], ({found.group(1)})>")
            stored = self._store(type, node.line, is_kept=True)
            if not isinstance(stored, int):
                return None
            self.constants[key] = stored
        return self.constants[key]

    def _store(
        self,
        type: IrType,
        line: int,
        *,
        is_kept: bool = False,
        is_input: bool = False,
        overwritten: list[int] | None = None,
    ) -> _Value:
        """New storages for every tensor of a type, except those that are a parameter."""
        if type is None:
            return None
        if isinstance(type, tuple):
            places = [(overwritten or [])[i : i + 1] for i in range(len(type))]
            items = [
                self._store(one, line, is_kept=is_kept, is_input=is_input, overwritten=place)
                for one, place in zip(type, places, strict=True)
            ]
            return self._many(tuple(items), line)
        if type.ref_key in self.named:
            return self.named[type.ref_key]
        if overwritten and self.storages[overwritten[0]].n_bytes == type.n_bytes:
            return overwritten[0]
        if type.n_bytes == 0:
            return None
        self.storages.append(Storage(type.n_bytes, line, is_kept, is_input))
        return len(self.storages) - 1

    def _function(self, graph: str) -> _Many:
        return _Many((), (), 0, graph)

    def _many(self, items: tuple[_Value, ...], line: int, graph: str | None = None) -> _Many:
        depth = 1 + max((item.depth for item in items if isinstance(item, _Many)), default=0)
        if depth > _DEEPEST:
            raise self._corrupt(line, f"more than {_DEEPEST} tuples inside each other")
        return _Many(items, self._join(items, line), depth, graph)

    def _join(self, values: tuple[_Value, ...], line: int) -> tuple[int, ...]:
        """The storages of some values, each once."""
        joined = tuple(dict.fromkeys(id for value in values for id in _storages_of(value)))
        self.n_links += len(joined)
        if self.n_links > _MOST_LINKS:
            raise self._corrupt(line, f"more than {_MOST_LINKS:,} values inside tuples")
        return joined

    def _corrupt(self, line: int, what: str) -> CorruptFile:
        return CorruptFile(f"{self.graph.path} line {line}: {what}", hint="save the graphs again")


def _checked(inliner: _Inliner, node: IrNode, text: str) -> TensorType | None:
    try:
        type = parse_type(text)
    except ValueError as error:
        raise inliner._corrupt(node.line, str(error)) from error
    return type if isinstance(type, TensorType) else None


def _storages_of(value: _Value) -> tuple[int, ...]:
    if isinstance(value, _Many):
        return value.storages
    return () if value is None else (value,)
