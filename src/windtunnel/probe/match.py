"""Which entry of A is which entry of B, and which value is which.

    names equal, in order ──────────────────────────────────────────────> pairs
    otherwise: values, names without call numbers, structure ──> align ──> pairs, renamed pairs, entries without one

A call number says how often something was called before, so one extra call on one side shifts all that follow; it is
never used to pair. What is used: values that are equal bit for bit, the API or module, the shapes, the order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.probe.alignment import align
from windtunnel.probe.dump_columns import Columns
from windtunnel.probe.entry_name import parse_entry_name

__all__ = ["Match", "match_columns", "value_hashes"]

_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Match:
    """Both sides side by side in the order they ran; -1 where a side has no partner."""

    entry_a: np.ndarray
    entry_b: np.ndarray
    n_renamed: int
    place: np.ndarray  # of every pair of values: index into entry_a and entry_b
    row_a: np.ndarray  # -1: a value that only B has
    row_b: np.ndarray


def match_columns(
    a: Columns,
    b: Columns,
    parents: tuple[dict[str, str | None], dict[str, str | None]] | None,
    *,
    shapes: bool = True,
) -> Match:
    """Pair everything; `shapes` says whether equal work has equal shapes (not if it is divided differently)."""
    if a.entries == b.entries:
        order = np.arange(len(a.entries))
        return _join(a, b, order, order, 0)
    pairs = _align_entries(a, b, parents or ({}, {}), shapes)
    entry_a, entry_b = _side_by_side(pairs, len(a.entries), len(b.entries))
    n_renamed = sum(
        parse_entry_name(a.entries[i]).without_call != parse_entry_name(b.entries[j]).without_call
        for i, j in pairs
    )
    return _join(a, b, entry_a, entry_b, n_renamed)


def _align_entries(
    a: Columns, b: Columns, parents: tuple[dict[str, str | None], dict[str, str | None]], shapes: bool
) -> list[tuple[int, int]]:
    codes: dict[object, int] = {}
    sides = []
    for columns, parent_of in zip((a, b), parents, strict=True):
        names = [parse_entry_name(name) for name in columns.entries]
        full = [name.without_call for name in names]
        scope = [_scope(parent_of.get(entry)) for entry in columns.entries]
        structure = [name.structure for name in names]
        form = _hash_rows(columns, _forms(columns)).tolist() if shapes else [0] * len(names)
        values = _hash_rows(columns, _mixed(_forms(columns), value_hashes(columns))).tolist()
        sides.append(
            [
                _coded(codes, "values", structure, values),
                _coded(codes, "in scope", full, scope, form),
                _coded(codes, "full", full, form),
                _coded(codes, "name", full),
                _coded(codes, "structure", structure, form),
                *(
                    []
                    if shapes
                    else [_coded(codes, "path", [f"{n.prefix}.{n.path}.{n.direction}" for n in names])]
                ),
            ]
        )
    pairs = align(*sides)
    return _add_moved(pairs, a.entries, b.entries)


def _scope(parent: str | None) -> str:
    return parse_entry_name(parent).without_call if parent else ""


def _coded(codes: dict[object, int], *columns: object) -> np.ndarray:
    rows = zip(*columns[1:], strict=True)  # type: ignore[arg-type]
    level = columns[0]
    return np.array([codes.setdefault((level, *row), len(codes)) for row in rows], dtype=np.int64)


def _add_moved(pairs: list[tuple[int, int]], a: list[str], b: list[str]) -> list[tuple[int, int]]:
    """Branches that do not depend on each other may run in any order: pair what is left by its whole name."""
    taken_a, taken_b = {i for i, _ in pairs}, {j for _, j in pairs}
    free = {name: j for j, name in enumerate(b) if j not in taken_b}
    moved = [(i, free[name]) for i, name in enumerate(a) if i not in taken_a and name in free]
    return pairs + moved


def _side_by_side(pairs: list[tuple[int, int]], n_a: int, n_b: int) -> tuple[np.ndarray, np.ndarray]:
    """All entries of both sides in order, each pair once; what only A has comes before what only B has."""
    partner = dict(pairs)
    taken = {j for _, j in pairs}
    left, right = [], []
    j = 0
    for i in range(n_a):
        at = partner.get(i, -1)
        if at >= j:  # an entry that moved does not bring its neighbours along
            alone = [k for k in range(j, at) if k not in taken]
            left += [-1] * len(alone)
            right += alone
            j = at + 1
        left.append(i)
        right.append(at)
    alone = [k for k in range(j, n_b) if k not in taken]
    return np.array(left + [-1] * len(alone), dtype=np.int64), np.array(right + alone, dtype=np.int64)


def _join(a: Columns, b: Columns, entry_a: np.ndarray, entry_b: np.ndarray, n_renamed: int) -> Match:
    """Pair the rows of paired entries by their suffix."""
    is_pair = (entry_a >= 0) & (entry_b >= 0)
    is_in_step = is_pair.all() and np.array_equal(entry_a, entry_b) and np.array_equal(a.starts, b.starts)
    if is_in_step and np.array_equal(a.suffix, b.suffix):
        rows = np.arange(a.n_rows)
        return Match(entry_a, entry_b, n_renamed, a.entry_of_rows(), rows, rows)
    n_suffixes = int(max(a.suffix.max(initial=0), b.suffix.max(initial=0))) + 1
    keys_a, rows_a = _keyed(a, entry_a, is_pair, n_suffixes)
    keys_b, rows_b = _keyed(b, entry_b, is_pair, n_suffixes)
    keys = np.union1d(keys_a, keys_b)
    row_a, row_b = np.full(len(keys), -1), np.full(len(keys), -1)
    row_a[np.searchsorted(keys, keys_a)] = rows_a
    row_b[np.searchsorted(keys, keys_b)] = rows_b
    place = keys // n_suffixes
    offset_a = np.where(row_a >= 0, row_a - a.starts[entry_a[place]], 0)
    offset_b = np.where(row_b >= 0, row_b - b.starts[entry_b[place]], 0)
    first = np.maximum(offset_a, offset_b)
    order = np.lexsort((first, place))
    return Match(entry_a, entry_b, n_renamed, place[order], row_a[order], row_b[order])


def _keyed(
    columns: Columns, entries: np.ndarray, is_pair: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    places = np.flatnonzero(is_pair)
    chosen = entries[places]
    counts = columns.starts[chosen + 1] - columns.starts[chosen]
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.repeat(columns.starts[chosen], counts) + offsets
    keys = np.repeat(places, counts) * n + columns.suffix[rows]
    keys, first = np.unique(keys, return_index=True)  # a suffix that comes twice in one entry counts once
    return keys, rows[first]


def _forms(columns: Columns) -> np.ndarray:
    """One number per row for what it is: its place and shape."""
    return _mixed(columns.suffix.astype(np.uint64), columns.shape.astype(np.uint64))


def value_hashes(columns: Columns) -> np.ndarray:
    """One number per row for the shape and the figures of its value, to the last bit."""
    figures = np.ascontiguousarray(columns.statistics).view(np.uint64)
    sketch = np.ascontiguousarray(columns.sketch).view(np.uint64)
    parts = [figures[:, i] for i in range(figures.shape[1])] + [sketch[:, i] for i in range(sketch.shape[1])]
    return _mixed(columns.shape.astype(np.uint64), columns.text.astype(np.int64).view(np.uint64), *parts)


def _mixed(*columns: np.ndarray) -> np.ndarray:
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        found = (found ^ column) * _MIX
        found ^= found >> np.uint64(29)
    return found


def _hash_rows(columns: Columns, rows: np.ndarray) -> np.ndarray:
    """One number per entry, from one number per row."""
    sums = np.concatenate([[np.uint64(0)], np.cumsum(rows, dtype=np.uint64)])
    return sums[columns.starts[1:]] - sums[columns.starts[:-1]]
