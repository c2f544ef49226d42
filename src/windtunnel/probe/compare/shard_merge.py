"""Merge the shards of several ranks, so that they can be compared with one rank that computed everything.

    columns of n ranks ──> unite ──> one list of entries, and where each rank has each value
    + the shapes of the other side ──> merge_shards ──> columns as if one rank had collected them

The shapes tell how a value is sharded: the same shape and values everywhere is a copy; one dimension divided is a
concatenation, whose statistics follow from those of the parts; the same shape with different values is a partial sum
of a row-parallel layer (or a mean over data-parallel ranks). A sketch is linear, so partial sums can be compared
without the tensors: the sketch of the sum is the sum of the sketches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from windtunnel.probe.compare.value_columns import (
    HAS_DIGEST,
    HAS_SKETCH,
    SKETCH_NUMBERS,
    TENSOR,
    Columns,
    Vocabulary,
)
from windtunnel.probe.files.entry_name import BACKWARD, GRADIENT, parse_entry_name

__all__ = [
    "ALONE", "AVERAGED", "COPIED", "ODD_RANK", "SPLIT", "SUMMED", "UNKNOWN_SUM", "UNLIKE", "Merged", "Union",
    "merge_shards", "unite",
]  # fmt: skip

# How the ranks of a side hold a value.
ALONE, COPIED, SPLIT, SUMMED, AVERAGED, ODD_RANK, UNKNOWN_SUM, UNLIKE = range(8)

_ALIKE = 1e-4  # relative: copies on two ranks differ by rounding at most
_HAS_MEAN = 4
_PLAIN = [field.name for field in fields(Columns) if field.name not in ("entries", "starts", "files")]


@dataclass(frozen=True, slots=True)
class Union:
    """Every entry that some rank has, once. `rows[i, r]` is the row of value i on rank r, or -1."""

    columns: Columns  # values of the first rank that has them
    rows: np.ndarray


@dataclass(frozen=True, slots=True)
class Merged:
    columns: Columns
    how: np.ndarray
    dim: np.ndarray  # along which SPLIT parts follow each other
    n_parts: np.ndarray
    divisor: np.ndarray  # of a sum over the ranks


def unite(ranks: Sequence[Columns], names: list[str] | None = None) -> Union:
    """One list of entries in execution order: as given, or pipeline stages in order forward, in reverse backward."""
    names = names or _ordered_names(ranks)
    index = {name: place for place, name in enumerate(names)}
    n_suffixes = int(max(columns.suffix.max(initial=0) for columns in ranks)) + 1
    keyed = []
    for columns in ranks:
        places = np.array([index[name] for name in columns.entries], dtype=np.int64)
        keys = np.repeat(places, np.diff(columns.starts)) * n_suffixes + columns.suffix
        keyed.append(np.unique(keys, return_index=True))
    keys = np.unique(np.concatenate([each for each, _ in keyed]))
    rows = np.full((len(keys), len(ranks)), -1, dtype=np.int64)
    for rank, (each, first) in enumerate(keyed):
        rows[np.searchsorted(keys, each), rank] = first
    owner = np.argmax(rows >= 0, axis=1)
    row = rows[np.arange(len(keys)), owner]
    place = keys // n_suffixes
    order = np.lexsort((row, place))  # the first owner's order; a rank lists its rows entry by entry
    rows, owner, row, place = rows[order], owner[order], row[order], place[order]
    starts = np.searchsorted(place, np.arange(len(names) + 1))
    files = {i: ranks[r].files[k] for i, (r, k) in enumerate(zip(owner.tolist(), row.tolist(), strict=True))
             if k in ranks[r].files}  # fmt: skip
    taken = {name: _take(ranks, name, owner, row) for name in _PLAIN}
    return Union(Columns(names, starts, **taken, files=files), rows)


def merge_shards(
    union: Union, ranks: Sequence[Columns], other: Columns, row_of_other: np.ndarray, words: Vocabulary
) -> Merged:
    """The values as one rank would have them; `row_of_other[i]` is the row of the other side for value i, or -1."""
    n = len(union.rows)
    how, dim = np.zeros(n, np.int8), np.full(n, -1, np.int8)
    n_parts = (union.rows >= 0).sum(axis=1)
    if not n or not other.n_rows:
        return Merged(union.columns, how, dim, n_parts, np.ones(n))
    ranks = [columns if columns.n_rows else union.columns for columns in ranks]  # an empty rank is never read
    shapes = list(words.shapes)
    wanted = np.where(row_of_other >= 0, other.shape[row_of_other], -1)
    is_tensor = union.columns.kind == TENSOR
    parts = np.stack(
        [
            np.where(union.rows[:, r] >= 0, columns.shape[union.rows[:, r]], -1)
            for r, columns in enumerate(ranks)
        ],
        axis=1,
    )
    table = np.column_stack([wanted, parts])
    cases, case_of = np.unique(table, axis=0, return_inverse=True)
    layouts = [_layout(case, shapes) for case in cases.tolist()]
    case_of = case_of.reshape(-1)
    dims = np.array([layout[0] for layout in layouts], dtype=np.int64).reshape(-1)[case_of]
    used = np.array([layout[1] for layout in layouts], dtype=np.int64).reshape(-1)[case_of]
    is_joined = is_tensor & (n_parts > 1) & (row_of_other >= 0)
    how[is_joined & (dims == _UNLIKE)] = UNLIKE
    merged = {name: getattr(union.columns, name).copy() for name in _PLAIN}
    split = is_joined & (dims >= 0)
    how[split], dim[split] = SPLIT, dims[split]
    _join_split(merged, union, ranks, split, used, wanted, words)
    n_parts = np.where(split, used, n_parts)
    same = np.flatnonzero(is_joined & (dims == _SAME))
    divisor = np.ones(n)
    _join_same(merged, union, ranks, other, row_of_other, same, how, divisor)
    return Merged(replace(union.columns, **merged), how, dim, n_parts, divisor)


_SAME, _UNLIKE = -1, -2  # instead of a dimension


def _layout(case: list[int], shapes: list[tuple[int, ...]]) -> tuple[int, int]:
    """Which dimension is sharded, and how many parts make the whole."""
    wanted, *codes = case
    codes = [code for code in codes if code >= 0]
    if wanted < 0 or not codes:
        return _UNLIKE, 0
    whole, parts = shapes[wanted], [shapes[code] for code in codes]
    if all(part == whole for part in parts):
        return _SAME, len(parts)
    if any(len(part) != len(whole) for part in parts):
        return _UNLIKE, 0
    for d in range(len(whole)):
        rest = whole[:d] + whole[d + 1 :]
        if any(part[:d] + part[d + 1 :] != rest for part in parts):
            continue
        size = 0
        for count, part in enumerate(parts, 1):
            size += part[d]
            if size == whole[d] and len(parts) % count == 0:
                return d, count  # the rest repeats the first ones: data-parallel copies
    return _UNLIKE, 0


def _join_split(
    merged: dict[str, np.ndarray], union: Union, ranks: Sequence[Columns], split: np.ndarray, used: np.ndarray,
    wanted: np.ndarray, words: Vocabulary,
) -> None:  # fmt: skip
    at = np.flatnonzero(split)
    counts = np.array([float(np.prod(shape, dtype=float)) for shape in words.shapes] or [1.0])
    high, low = np.full(len(at), -np.inf), np.full(len(at), np.inf)
    total, squares, n_all = np.zeros(len(at)), np.zeros(len(at)), np.zeros(len(at))
    tallies = {name: np.zeros(len(at), np.int64) for name in ("n_nan", "n_inf", "n_zero")}
    has = np.full(len(at), 15, np.int8)
    position = np.zeros(len(at), np.int64)
    with np.errstate(all="ignore"):
        for r, columns in enumerate(ranks):
            row = union.rows[at, r]
            on = (row >= 0) & (position < used[at])
            position += row >= 0
            figures, n = columns.statistics[row], np.where(on, counts[columns.shape[row]], 0.0)
            high = np.where(on, np.maximum(high, figures[:, 0]), high)
            low = np.where(on, np.minimum(low, figures[:, 1]), low)
            total = np.where(on, total + figures[:, 2] * n, total)
            squares = np.where(on, squares + np.square(figures[:, 3]), squares)
            n_all += n
            has = np.where(on, has & columns.has[row], has)
            for name, tally in tallies.items():
                tally += np.where(on, getattr(columns, name)[row], 0)
        merged["statistics"][at] = np.column_stack(
            [high, low, total / np.maximum(n_all, 1), np.sqrt(squares)]
        )
    merged["has"][at] = has
    merged["shape"][at] = wanted[at]
    for name, tally in tallies.items():
        merged[name][at] = tally


def _join_same(
    merged: dict[str, np.ndarray], union: Union, ranks: Sequence[Columns], other: Columns, row_of_other: np.ndarray,
    at: np.ndarray, how: np.ndarray, divisor: np.ndarray,
) -> None:  # fmt: skip
    """Merge values of equal shape: copies, partial sums, means, or one deviating rank."""
    target = row_of_other[at]
    n = len(at)
    to_other = np.full((n, len(ranks)), np.nan)
    to_first = np.zeros(n)
    sketch, mean, n_parts = np.zeros((n, SKETCH_NUMBERS)), np.zeros(n), np.zeros(n)
    has = np.full(n, HAS_SKETCH | _HAS_MEAN, np.int8)
    for r, columns in enumerate(ranks):
        row = union.rows[at, r]
        on = row >= 0
        to_other[:, r] = np.where(on, _apart(columns, row, other, target), np.nan)
        to_first = np.where(on, np.fmax(to_first, _apart(columns, row, union.columns, at)), to_first)
        sketch += np.where(on[:, None], columns.sketch[row], 0.0)
        mean += np.where(on, columns.statistics[row, 2], 0.0)
        has = np.where(on, has & columns.has[row], has)
        n_parts += on
    is_copy = to_first <= _ALIKE
    with np.errstate(all="ignore"):
        is_odd = ~is_copy & (np.nanmin(to_other, axis=1) <= _ALIKE)
        worst = np.argmax(np.nan_to_num(to_other, nan=-1.0), axis=1)
    is_sum = ~is_copy & ~is_odd
    is_known = (has & HAS_SKETCH & other.has[target]) != 0
    by = _divisor(sketch, other.sketch[target], len(ranks))
    is_mean = (by > 1) & (by == n_parts)
    how[at] = np.select(
        [is_copy, is_odd, ~is_known, is_mean], [COPIED, ODD_RANK, UNKNOWN_SUM, AVERAGED], default=SUMMED
    )
    for index in np.flatnonzero(is_odd):
        columns, row = ranks[worst[index]], union.rows[at[index], worst[index]]
        for name in _PLAIN:
            merged[name][at[index]] = getattr(columns, name)[row]
    rows = at[is_sum]
    divisor[rows] = by[is_sum]
    merged["sketch"][rows] = (sketch / by[:, None])[is_sum]
    merged["statistics"][rows] = 0.0
    merged["statistics"][rows, 2] = (mean / by)[is_sum]
    merged["has"][rows] = np.where(is_known, has, 0)[is_sum]
    merged["has"][rows] &= ~HAS_DIGEST


def _divisor(total: np.ndarray, whole: np.ndarray, n_ranks: int) -> np.ndarray:
    """The divisor of a sum over the ranks: 1, their number for a mean, or the number of copies of each part."""
    best, nearest = np.ones(len(total)), np.full(len(total), np.inf)
    for divisor in (d for d in range(1, n_ranks + 1) if n_ranks % d == 0):
        off = np.square(total / divisor - whole).sum(axis=1)
        best, nearest = np.where(off < nearest, divisor, best), np.minimum(off, nearest)
    return best


def _apart(a: Columns, row_a: np.ndarray, b: Columns, row_b: np.ndarray) -> np.ndarray:
    """A relative distance: by sketches if both have them, else by statistics."""
    with np.errstate(all="ignore"):
        both = a.has[row_a] & b.has[row_b]
        x, y = a.statistics[row_a], b.statistics[row_b]
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        scale = np.maximum(np.abs(x), np.abs(y)).max(axis=1)
        by_figures = np.where(same, 0.0, np.abs(x - y)).max(axis=1) / np.where(scale > 0, scale, 1.0)
        distance = np.sqrt(np.square(a.sketch[row_a] - b.sketch[row_b]).sum(axis=1) / SKETCH_NUMBERS)
        spread = np.sqrt(np.square(b.sketch[row_b]).sum(axis=1) / SKETCH_NUMBERS)
        by_sketch = np.where(distance == 0, 0.0, distance / np.where(spread > 0, spread, 1.0))
        return np.nan_to_num(np.where(both & HAS_SKETCH, by_sketch, by_figures), nan=1.0)


def _ordered_names(ranks: Sequence[Columns]) -> list[str]:
    if all(columns.entries == ranks[0].entries for columns in ranks):
        return list(ranks[0].entries)
    keys: dict[str, tuple[int, int, int]] = {}
    for rank, columns in enumerate(ranks):
        is_backward = [parse_entry_name(name).direction in (BACKWARD, GRADIENT) for name in columns.entries]
        first = is_backward.index(True) if True in is_backward else len(is_backward)
        last = len(is_backward) - 1 - is_backward[::-1].index(True) if True in is_backward else first
        for place, name in enumerate(columns.entries):
            phase = 0 if place < first else 1 if place <= last else 2
            keys.setdefault(name, (phase, -rank if phase == 1 else rank, place))
    return sorted(keys, key=keys.__getitem__)


def _take(ranks: Sequence[Columns], name: str, owner: np.ndarray, row: np.ndarray) -> np.ndarray:
    first = getattr(ranks[0], name)
    found = np.zeros((len(row), *first.shape[1:]), first.dtype)
    for rank, columns in enumerate(ranks):
        on = owner == rank
        found[on] = getattr(columns, name)[row[on]]
    return found
