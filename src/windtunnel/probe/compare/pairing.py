"""Pair the entries of A with those of B, and their values.

    names equal, in order ──────────────────────────────────────────────> pairs
    otherwise: values, names without call numbers, structure ──> align ──> pairs, renamed pairs, entries without one

A call number counts earlier calls, so one extra call on one side shifts all that follow; it is never used to pair. What
is used: bit-identical values, the API or module, the shapes, the order. Two frameworks agree neither to the bit nor in
their names: then values that nearly agree are used, and names as `Unlike` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.probe.compare.framework_names import Reader, neutral_shape
from windtunnel.probe.compare.sequence_alignment import align
from windtunnel.probe.compare.value_columns import OUTPUT, TENSOR, Columns, Vocabulary
from windtunnel.probe.compare.value_pairs import ValuePairs
from windtunnel.probe.files.entry_name import EntryName, parse_entry_name

__all__ = ["Match", "Unlike", "match_columns", "value_hashes"]

_MIX = np.uint64(0x9E3779B97F4A7C15)
_STEPS = 256  # quantisation steps between one power of two and the next: noise of 1e-5 rarely crosses one
_TINY = 1e-30


@dataclass(frozen=True, slots=True)
class Match:
    """Both sides side by side in execution order; -1 where an entry has no counterpart."""

    entry_a: np.ndarray
    entry_b: np.ndarray
    n_renamed: int
    place: np.ndarray  # of every pair of values: index into entry_a and entry_b
    row_a: np.ndarray  # -1: a value that only B has
    row_b: np.ndarray


@dataclass(frozen=True, slots=True)
class Unlike:
    """How to compare sides with different vocabularies: two frameworks, or names that the user's mapping equates."""

    readers: tuple[Reader, Reader]
    pair_values: ValuePairs
    words: Vocabulary


def match_columns(
    a: Columns,
    b: Columns,
    parents: tuple[dict[str, str | None], dict[str, str | None]] | None,
    *,
    shapes: bool = True,
    unlike: Unlike | None = None,
) -> Match:
    """Pair everything; `shapes` says whether equal work has equal shapes (not if it is divided differently)."""
    if a.entries == b.entries and unlike is None:
        order = np.arange(len(a.entries))
        return _join(a, b, order, order, 0)
    readers = unlike.readers if unlike is not None else (parse_entry_name, parse_entry_name)
    names = tuple([read(entry) for entry in side.entries] for read, side in zip(readers, (a, b), strict=True))
    scopes = tuple(
        [_scope(parent_of.get(entry), read) for entry in side.entries]
        for read, side, parent_of in zip(readers, (a, b), parents or ({}, {}), strict=True)
    )
    pairs = _align_entries(a, b, names, scopes, shapes, unlike)
    entry_a, entry_b = _side_by_side(pairs, len(a.entries), len(b.entries))
    if unlike is None:
        n_renamed = sum(names[0][i].without_call != names[1][j].without_call for i, j in pairs)
        return _join(a, b, entry_a, entry_b, n_renamed)
    n_renamed = sum(_path(names[0][i]) != _path(names[1][j]) for i, j in pairs)
    return _join_unlike(entry_a, entry_b, n_renamed, unlike.pair_values, names[0])


def _align_entries(
    a: Columns, b: Columns, names_of: tuple[list[EntryName], ...], scopes: tuple[list[str], ...], shapes: bool,
    unlike: Unlike | None,
) -> list[tuple[int, int]]:  # fmt: skip
    codes: dict[object, int] = {}
    sides = []
    paths = [{name.path for name in names if name.is_module} for names in names_of]
    shared = set() if unlike is None else paths[0] & paths[1]
    for columns, names, scope in zip((a, b), names_of, scopes, strict=True):
        full = [name.without_call for name in names]
        # A path that both sides have is not a renamed module, however similar another one is.
        structure = [_path(name) if name.path in shared else name.structure for name in names]
        if unlike is None:
            forms = _forms(columns)
            values = _hash_rows(columns, _mixed(forms, value_hashes(columns))).tolist()
        else:
            forms = _output_forms(columns, unlike.words)
            values = _hash_rows(
                columns, np.where(forms, _mixed(forms, _near_hashes(columns)), forms)
            ).tolist()
        form = _hash_rows(columns, forms).tolist() if shapes else [0] * len(names)
        sides.append(
            [
                _coded(codes, "values", structure, values),
                _coded(codes, "in scope", full, scope, form),
                _coded(codes, "full", full, form),
                _coded(codes, "name", full),
                _coded(codes, "structure", structure, form),
                *([] if shapes and unlike is None else [_coded(codes, "path", list(map(_path, names)))]),
            ]
        )
    if unlike is not None:  # the path decides, the class only helps
        for levels in sides:
            levels.insert(4, levels.pop())
    pairs = align(*sides)
    if unlike is None:
        return _add_moved(pairs, a.entries, b.entries)
    return _add_moved(pairs, *(list(map(_moved_key, names)) for names in names_of))


def _path(name: EntryName) -> str:
    return f"{name.prefix}.{name.path}.{name.phase}"


def _moved_key(name: EntryName) -> object:
    """What identifies an entry wherever it runs: path and call of a module; functions are counted differently."""
    return (name.path, name.phase, name.call) if name.is_module else None


def _scope(parent: str | None, read: Reader) -> str:
    if not parent:
        return ""
    name = read(parent)
    return f"{name.path}.{name.phase}" if name.is_module else name.without_call


def _coded(codes: dict[object, int], level: str, *columns: Sequence[object]) -> np.ndarray:
    rows = zip(*columns, strict=True)
    return np.array([codes.setdefault((level, *row), len(codes)) for row in rows], dtype=np.int64)


def _add_moved(
    pairs: list[tuple[int, int]], a: Sequence[object], b: Sequence[object]
) -> list[tuple[int, int]]:
    """Independent branches may run in any order: pair the remaining entries by their full names."""
    taken_a, taken_b = {i for i, _ in pairs}, {j for _, j in pairs}
    free = {name: j for j, name in enumerate(b) if j not in taken_b and name is not None}
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
        if at >= j:  # a moved entry does not move its neighbours
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


def _join_unlike(
    entry_a: np.ndarray,
    entry_b: np.ndarray,
    n_renamed: int,
    pair_values: ValuePairs,
    names_a: list[EntryName],
) -> Match:
    """As `_join`, where a value may have another position or name."""
    found: list[tuple[int, int, int]] = []
    for place, (i, j) in enumerate(zip(entry_a.tolist(), entry_b.tolist(), strict=True)):
        if i >= 0 and j >= 0:
            found += [(place, *rows) for rows in pair_values(i, j, is_module=names_a[i].is_module)]
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    return Match(entry_a, entry_b, n_renamed, table[:, 0], table[:, 1], table[:, 2])


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
    """One hash per row of its position and shape."""
    return _mixed(columns.suffix.astype(np.uint64), columns.shape.astype(np.uint64))


def _output_forms(columns: Columns, words: Vocabulary) -> np.ndarray:
    """One hash per output tensor of its shape; 0 for all other rows, because arguments differ between frameworks."""
    known: dict[tuple[int, ...], int] = {}
    shapes = np.array([known.setdefault(neutral_shape(shape), len(known)) for shape in words.shapes] or [0])
    roles = np.frombuffer(words.roles, np.int8) if words.roles else np.zeros(1, np.int8)
    is_output = (columns.kind == TENSOR) & (roles[columns.suffix] == OUTPUT)
    return np.where(is_output, _mixed(shapes[columns.shape].astype(np.uint64) + np.uint64(1)), np.uint64(0))


def _near_hashes(columns: Columns) -> np.ndarray:
    """One hash per row that is mostly the same for values that nearly agree: of its extremes in coarse steps."""
    extremes = columns.statistics[:, :2]
    with np.errstate(all="ignore"):
        steps = np.round(np.log2(np.maximum(np.abs(extremes), _TINY)) * _STEPS)
        steps = np.where(np.isfinite(steps), np.copysign(np.abs(steps) * 2 + (steps < 0), extremes), 0.0)
    return _mixed(*(steps[:, k].astype(np.int64).view(np.uint64) for k in (0, 1)))


def value_hashes(columns: Columns) -> np.ndarray:
    """One hash per row of the shape and the statistics of its value, to the last bit."""
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
    """One hash per entry, from one hash per row."""
    sums = np.concatenate([[np.uint64(0)], np.cumsum(rows, dtype=np.uint64)])
    return sums[columns.starts[1:]] - sums[columns.starts[:-1]]
