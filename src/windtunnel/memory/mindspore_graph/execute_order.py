"""In which order MindSpore ran the operators of a graph: its execute_order.csv.

    execute_order.csv ──> scopes in order ──> order_steps ──> the same steps, in that order

MindSpore writes it into `execute_order/` beside the saved graphs, once the graph reaches its backend.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from math import inf
from pathlib import Path

from windtunnel.errors import CorruptFile
from windtunnel.foreign_files import open_file
from windtunnel.memory.mindspore_graph.program import Step

__all__ = ["find_execute_order", "order_steps", "read_execute_order"]

_COLUMN = "node_name"
_LONGEST = 1 << 20  # characters of a cell


def find_execute_order(graph: Path) -> Path | None:
    """The file that belongs to a saved graph, if MindSpore wrote one."""
    found = graph.parent / "execute_order" / "execute_order.csv"
    return found if found.is_file() else None


def read_execute_order(path: Path) -> list[str]:
    """Full names of the operators, first to last."""
    limit = csv.field_size_limit(_LONGEST)
    try:
        with open_file(path, "r", encoding="utf-8", errors="backslashreplace", newline="") as file:
            rows = csv.DictReader(file)
            if _COLUMN not in (rows.fieldnames or ()):
                raise CorruptFile(f"{path} is not an execute_order.csv: it has no column {_COLUMN}")
            return [row[_COLUMN] or "" for row in rows]
    except (OSError, csv.Error) as error:
        raise CorruptFile(f"cannot read {path}: {error}") from error
    finally:
        csv.field_size_limit(limit)


def order_steps(steps: Sequence[Step], names: Sequence[str]) -> tuple[list[Step], int]:
    """Sort steps as they ran; also how many of them the file names.

    The backend gives some operators other names. Such a step runs as late as it can: just before the first that
    reads its result, and at the end when none does.
    """
    places = _places(steps, names)
    due: list[float] = [places.get(i, inf) for i in range(len(steps))]
    first_reader: dict[int, float] = {}
    for i in range(len(steps) - 1, -1, -1):
        due[i] = min([due[i], *(first_reader[id] for id in steps[i].makes if id in first_reader)])
        for id in steps[i].reads:
            first_reader[id] = min(due[i], first_reader.get(id, inf))
    return [steps[i] for i in sorted(range(len(steps)), key=lambda i: (due[i], i))], len(places)


def _places(steps: Sequence[Step], names: Sequence[str]) -> dict[int, int]:
    """Index of a step -> its place in the order.

    A subgraph that is called many times has one scope for many steps (`Add-op0` twice); the backend counts on
    (`Add-op0`, `Add-op1`), call by call. So steps of one family are matched by their turn, when there are
    equally many; otherwise only those of the main graph are, by name.
    """
    ran: dict[str, list[tuple[int, int]]] = {}  # family -> number, place
    for place, name in enumerate(names):
        family, number = _split_name(name)
        ran.setdefault(family, []).append((number, place))
    ours: dict[str, list[tuple[int, int, int]]] = {}  # family -> call, number, step
    for i, step in enumerate(steps):
        family, number = _split_name(step.scope)
        ours.setdefault(family, []).append((step.call, number, i))
    places: dict[int, int] = {}
    for family, members in ours.items():
        theirs = ran.get(family, [])
        if len(theirs) == len(members):
            pairs = zip(sorted(members), sorted(theirs), strict=True)
            places.update((i, place) for (_, _, i), (_, place) in pairs)
        else:
            known = dict(theirs)
            places.update((i, known[number]) for call, number, i in members if call == 0 and number in known)
    return places


def _split_name(name: str) -> tuple[str, int]:
    """`Default/Add-op3` -> `Default/Add`, 3."""
    family, _, number = name.rpartition("-op")
    return (
        (family, int(number)) if number.isascii() and number.isdecimal() and len(number) < 10 else (name, -1)
    )
