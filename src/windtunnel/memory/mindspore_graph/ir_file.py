"""MindSpore's static graph as text: the `NN_validate_NNNN.ir` that it saves after sharding.

    lines ──> parameters with the shapes of this rank's slices
          └─> subgraphs of nodes: operator, arguments, type of the result, scope, group ──> GraphIr

MindSpore writes it with MS_DEV_SAVE_GRAPHS=1, or set_context(save_graphs=1). The file is read line by line, and
nothing in it is executed. Only what memory depends on is kept: the traceback under a node is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.errors import CorruptFile
from windtunnel.foreign_files import open_file
from windtunnel.memory.mindspore_graph.ir_types import IrType, parse_type, split_list

__all__ = ["GraphIr", "IrNode", "IrParameter", "Subgraph", "read_graph_ir"]

FIRST_WORDS = "# IR entry: @"
_LONGEST = 1 << 24  # characters of a line: the tuple of all gradients of a very large model needs a tenth
_MOST_NODES = 5_000_000
_PARAMETER = re.compile(r"%para(\d{1,9})_(.*?): (<.*)")
_NODE = re.compile(r"  %(\d{1,9})\(([^()]*)\) = (.*)")
_PARA = re.compile(r"%para(\d{1,9})_")
_GROUP = re.compile(r'[{ ]group: "([^"]*)"')
_SCOPE = "      # Fullname with scope: ("
_TYPES = "      : ("
_IN_PLACE = "side_effect_mem: Bool(1)"


@dataclass(frozen=True, slots=True)
class IrParameter:
    """A weight, a state of the optimizer, or an input of the network, as this rank holds it."""

    number: int
    name: str
    type: IrType
    is_weight: bool
    line: int


@dataclass(frozen=True, slots=True)
class IrNode:
    """One operator. An argument is the text in the file: `%3`, `%para1_x`, `@graph`, or a constant."""

    line: int
    number: int  # -1: the Return of its subgraph
    op: str  # MatMul, not PrimFunc_MatMul; "call @…", or "%57[…]" for a call of what node 57 made
    args: tuple[str, ...]
    result: IrType | None
    scope: str
    group: str | None  # of a collective
    is_in_place: bool  # it writes to one of its parameters


@dataclass(slots=True)
class Subgraph:
    """The nodes of one function, in the order of the file; the last one is Return."""

    name: str
    parameters: tuple[int, ...]
    line: int
    nodes: list[IrNode] = field(default_factory=list)


@dataclass(frozen=True)
class GraphIr:
    """A whole file."""

    path: Path
    entry: str
    parameters: dict[int, IrParameter]
    subgraphs: dict[str, Subgraph]


@dataclass(slots=True)
class _Pending:
    """A node whose types and scope are on the lines after it."""

    line: int
    number: int
    op: str
    args: tuple[str, ...]
    attributes: str
    result: IrType | None = None
    scope: str = ""

    def close(self) -> IrNode:
        group = _GROUP.search(self.attributes)
        return IrNode(
            self.line,
            self.number,
            self.op,
            self.args,
            self.result,
            self.scope,
            group.group(1) if group else None,
            _IN_PLACE in self.attributes,
        )


def read_graph_ir(path: Path) -> GraphIr:
    """Read a whole file; a line that cannot be what MindSpore writes is refused with its number."""
    graph: GraphIr | None = None
    current: Subgraph | None = None
    pending: _Pending | None = None
    n_nodes = 0
    for line, text in _lines(path):
        try:
            if graph is None:
                graph = _entry(path, text)
            elif current is None:
                current = _outside(graph, line, text)
            elif text == "}":
                _close(graph, current, pending)
                current = pending = None
            elif text.startswith("  %") or text.startswith("  Return("):
                if pending is not None:
                    current.nodes.append(pending.close())
                pending = _node(line, text)
                n_nodes += 1
                if n_nodes > _MOST_NODES:
                    raise ValueError(f"more than {_MOST_NODES:,} operators")
            elif pending is not None and text.startswith(_TYPES) and pending.result is None:
                pending.result = _result_type(text)
            elif pending is not None and text.startswith(_SCOPE):
                pending.scope = text.removeprefix(_SCOPE).removesuffix(")")
        except ValueError as error:
            raise CorruptFile(
                f"{path} line {line}: {error}", hint="it is not what MindSpore 2.3 to 2.10 saves"
            ) from error
    if graph is None or current is not None or graph.entry not in graph.subgraphs:
        where = f"inside the subgraph of line {current.line}" if current else "before its main subgraph"
        raise CorruptFile(f"{path} ends {where}", hint="the file is truncated: save the graphs again")
    return graph


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with open_file(path, "r", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            for line, text in enumerate(iter(lambda: file.readline(_LONGEST), ""), start=1):
                if len(text) == _LONGEST:
                    raise CorruptFile(f"{path} line {line}: longer than any line MindSpore writes")
                yield line, text.rstrip("\r\n")
    except OSError as error:
        raise CorruptFile(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error


def _entry(path: Path, text: str) -> GraphIr:
    if not text.startswith(FIRST_WORDS):
        raise ValueError(f"a graph file begins with {FIRST_WORDS!r}")
    return GraphIr(path, text.removeprefix(FIRST_WORDS).strip(), {}, {})


def _outside(graph: GraphIr, line: int, text: str) -> Subgraph | None:
    """A parameter, or the head of a subgraph; anything else between subgraphs is for people."""
    if text.startswith("%para"):
        found = _PARAMETER.match(text)
        if found is None:
            raise ValueError("a parameter without a type")
        number = int(found.group(1))
        end = _end_of_type(found.group(3))
        rest = found.group(3)[end:]
        type = parse_type(found.group(3)[:end])
        is_weight = "has_default" in rest or ", is_parameter" in found.group(3)[:end]
        graph.parameters[number] = IrParameter(number, found.group(2), type, is_weight, line)
    elif text.startswith("subgraph @"):
        name, bracket, rest = text.removeprefix("subgraph @").partition("(")
        if not (name and bracket and rest.endswith(") {")):
            raise ValueError("a subgraph without parameters")
        return Subgraph(name, tuple(int(n) for n in _PARA.findall(rest)), line)
    return None


def _close(graph: GraphIr, subgraph: Subgraph, pending: _Pending | None) -> None:
    if pending is None or pending.op != "Return":
        raise ValueError("the subgraph ends without Return")
    subgraph.nodes.append(pending.close())
    graph.subgraphs[subgraph.name] = subgraph


def _node(line: int, text: str) -> _Pending:
    found = _NODE.fullmatch(text)
    number, call = (int(found.group(1)), found.group(3)) if found else (-1, text.strip())
    if found is None and not call.startswith("Return("):
        raise ValueError("an operator without a name")
    op, args, rest = _split_call(call)
    return _Pending(line, number, op.removeprefix("PrimFunc_"), args, rest)


def _split_call(text: str) -> tuple[str, tuple[str, ...], str]:
    """`Op(a, b) attributes` -> its three parts. A call of a value has brackets in its name."""
    start = text.find("(")
    if text.startswith("%"):
        start = text.find("](") + 1
    if text.startswith("call @"):
        start = text.find("(", len("call @"))
    if start <= 0:
        raise ValueError("an operator without arguments")
    args, end = split_list(text, start)
    return text[:start], args, text[end:]


def _result_type(text: str) -> IrType | None:
    """The type behind the arrow; Return has none."""
    before = text.index("(")
    _, end = split_list(text, before)
    if not text[end:].startswith(" -> ("):
        return None
    results, _ = split_list(text, end + len(" -> "))
    if len(results) != 1:
        raise ValueError(f"{len(results)} results instead of one")
    return parse_type(results[0])


def _end_of_type(text: str) -> int:
    depth = 0
    for i, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        if depth == 0:
            return i + 1
    raise ValueError("an unclosed type")
