"""The modules of a dump as a tree, each node with the totals of its calls and of everything below it.

    names of calls, the module each ran in ──> nodes ──┐
    CallStates ────────────────────────────────────────┴──> ModuleTree: counts, worst error, where it begins

Modules are placed by their names; an API is placed in the module it ran in if the dump knows it, otherwise under its
kind (Functional, Tensor, ...). Names come from untrusted files: their number and depth are limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.probe.compare.call_states import CallStates
from windtunnel.probe.files.entry_name import DEBUG, EntryName, parse_entry_name

__all__ = ["API", "GROUP", "MODULE", "ModuleTree", "module_tree"]

MODULE, API, GROUP = 0, 1, 2  # kinds of nodes
_MOST_NODES = 60_000
_DEEPEST = 48

_Part = tuple[int, str]  # kind and name of a node below its parent
_MORE: _Part = (GROUP, "more")


@dataclass(frozen=True, slots=True)
class ModuleTree:
    """Nodes in the order in which they first ran; a parent comes before its children. Totals include descendants."""

    names: tuple[str, ...]
    class_names: tuple[str, ...]
    kinds: np.ndarray
    parents: np.ndarray  # -1: at the top
    node_of_call: np.ndarray
    counts: np.ndarray  # as in CallStates
    error: np.ndarray
    n_calls: np.ndarray
    n_begins: np.ndarray  # calls at which a difference begins
    first: np.ndarray  # the first call that differs; -1: none
    is_whole: bool  # no node was left out


def module_tree(states: CallStates, parents: Sequence[str | None]) -> ModuleTree:
    """`parents` is the entry that each call ran in, None where that is not known."""
    builder = _Builder()
    nodes = np.array(
        [builder.node_of(name, parent) for name, parent in zip(states.names, parents, strict=True)], np.int64
    ).reshape(-1)
    return _totalled(builder, nodes, states)


class _Builder:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.classes: list[str] = []
        self.kinds: list[int] = []
        self.parents: list[int] = []
        self.is_whole = True
        self._children: dict[tuple[int, _Part], int] = {}
        self._paths: dict[str, tuple[_Part, ...]] = {}  # of the modules that calls ran in

    def node_of(self, name: EntryName, parent: str | None) -> int:
        if name.is_module:
            node = self._find(_module_path(name.path))
            if not self.classes[node]:
                self.classes[node] = name.class_name
            return node
        if name.direction == DEBUG:
            return self._find(((GROUP, "saved by hand"), (API, name.path)))
        around = self._around(parent)
        label = f"{name.prefix}.{name.path}" if name.prefix else name.path
        if around:
            return self._find((*around, (API, label)))
        return self._find(((GROUP, name.prefix or "other"), (API, label)))

    def _around(self, parent: str | None) -> tuple[_Part, ...]:
        if parent is None:
            return ()
        path = self._paths.get(parent)
        if path is None:
            name = parse_entry_name(parent)
            path = self._paths[parent] = _module_path(name.path) if name.is_module else ()
        return path

    def _find(self, path: Sequence[_Part]) -> int:
        node = -1
        for part in path:
            child = self._children.get((node, part))
            if child is None:
                if len(self.names) >= _MOST_NODES and (node >= 0 or part != _MORE):
                    self.is_whole = False
                    return (
                        node if node >= 0 else self._find((_MORE,))
                    )  # counted here, without a node of its own
                child = self._children[node, part] = len(self.names)
                kind, name = part
                self.names.append(name)
                self.classes.append("")
                self.kinds.append(kind)
                self.parents.append(node)
            node = child
        return node


def _module_path(path: str) -> tuple[_Part, ...]:
    parts = path.split(".", _DEEPEST)
    return tuple((MODULE, part) for part in parts)


def _totalled(builder: _Builder, nodes: np.ndarray, states: CallStates) -> ModuleTree:
    n = len(builder.names)
    counts, n_calls, n_begins = np.zeros((n, 4), np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    error, first = np.zeros(n), np.full(n, len(nodes))
    np.add.at(counts, nodes, states.counts)
    np.add.at(n_calls, nodes, 1)
    np.add.at(n_begins, nodes, states.begins)
    np.maximum.at(error, nodes, states.error)
    differs = np.flatnonzero(states.counts[:, 2:].any(axis=1))
    np.minimum.at(first, nodes[differs], differs)
    # Children come after their parents, so in reverse order every node is complete before it is added to its parent.
    for node in range(n - 1, -1, -1):
        parent = builder.parents[node]
        if parent >= 0:
            counts[parent] += counts[node]
            n_calls[parent] += n_calls[node]
            n_begins[parent] += n_begins[node]
            error[parent] = max(error[parent], error[node])
            first[parent] = min(first[parent], first[node])
    first[first == len(nodes)] = -1
    return ModuleTree(
        tuple(builder.names), tuple(builder.classes), np.array(builder.kinds, np.int64),
        np.array(builder.parents, np.int64), nodes, counts, error, n_calls, n_begins, first, builder.is_whole,
    )  # fmt: skip
