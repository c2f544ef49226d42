"""Eager and compiled code of one step as one sequence: what ran in a graph is inserted where the graph was called.

    pynative/: embed, block (compiled), head ──┐
    graph/:    block.norm, block.fc          ──┴──> embed, block.norm, block.fc, block, head

A module is written when it is done, so what ran inside it comes before it, in forward and in backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from windtunnel.probe.files.entry_name import BACKWARD, GRADIENT, EntryName, parse_entry_name

__all__ = ["interleave"]


def interleave(eager: Sequence[str], graph: Sequence[str]) -> list[str]:
    """All names once, those of each side in their order."""
    known = dict.fromkeys(eager)
    by_path: dict[tuple[str, bool], list[str]] = {}  # path, backward? -> entries of the eager side in order
    for entry in known:
        name = parse_entry_name(entry)
        by_path.setdefault((name.path, _is_backward(name)), []).append(entry)
    before: dict[str, list[str]] = {}
    loose: dict[bool, list[str]] = {False: [], True: []}
    waiting: list[str] = []  # functions of the graph have no path: they are placed with its next module
    for entry in graph:
        name = parse_entry_name(entry)
        if entry in known:
            before.setdefault(entry, []).extend(waiting)
            waiting = []
            continue
        waiting.append(entry)
        anchor = next(_anchors(name, by_path), None)
        if name.is_module and anchor is not None:
            before.setdefault(anchor, []).extend(waiting)
            waiting = []
        elif name.is_module:
            loose[_is_backward(name)].extend(waiting)
            waiting = []
    for entry in waiting:
        loose[_is_backward(parse_entry_name(entry))].append(entry)
    return list(_woven(list(known), before, loose))


def _anchors(name: EntryName, by_path: dict[tuple[str, bool], list[str]]) -> Iterator[str]:
    """Entries of the enclosing modules, nearest first; of the same call if there is one."""
    path = name.path
    while "." in path:
        path = path.rpartition(".")[0]
        found = by_path.get((path, _is_backward(name)), [])
        if found:
            yield found[min(name.call, len(found) - 1)]


def _woven(eager: list[str], before: dict[str, list[str]], loose: dict[bool, list[str]]) -> Iterator[str]:
    """Interleave; entries without an anchor come at the end of the forward, or of the backward."""
    directions = [_is_backward(parse_entry_name(entry)) for entry in eager]
    first = directions.index(True) if True in directions else len(eager)
    last = len(eager) - directions[::-1].index(True) if True in directions else len(eager)
    for at, entry in enumerate(eager):
        if at == first:
            yield from loose[False]
        if at == last:
            yield from loose[True]
        yield from before.get(entry, [])
        yield entry
    yield from loose[False] if first == len(eager) else []
    yield from loose[True] if last == len(eager) else []


def _is_backward(name: EntryName) -> bool:
    return name.direction in (BACKWARD, GRADIENT)
