"""Describe a difference in words: what kind it is, and whether this call caused it or received it.

    RankComparison, index of the first different pair ──> explain ──> sentences

The origin of a value is found by its statistics: the last earlier output of the same side with exactly the same ones.
"""

from __future__ import annotations

import numpy as np

from windtunnel.probe.compare.comparison import RankComparison
from windtunnel.probe.compare.relative_errors import SKETCH, VALUES
from windtunnel.probe.compare.shard_merge import AVERAGED, ODD_RANK, SPLIT, SUMMED, UNKNOWN_SUM, UNLIKE
from windtunnel.probe.compare.side import Side
from windtunnel.probe.compare.tolerance import EQUAL
from windtunnel.probe.compare.value_columns import (
    HAS_SKETCH,
    HAS_STATISTICS,
    NUMBER,
    OUTPUT,
    PARAMETER,
    TEXT,
    Columns,
)

__all__ = ["explain"]

_LARGE = 0.05  # an error that slightly different values cannot cause while all statistics agree
_SAME_FIGURES = 1e-4
_HOW = {
    SPLIT: "the {n} ranks hold shards of it, which were concatenated along dimension {dim}",
    SUMMED: "the {n} ranks hold partial sums of it, which were added: a missing all-reduce looks like this",
    AVERAGED: "the {n} ranks hold different values of it, which were averaged: a missing all-reduce looks like this",
    ODD_RANK: "one of the {n} ranks agrees with the other side, another does not",
    UNKNOWN_SUM: "the {n} ranks hold different values of it, and without a sketch their sum is not known",
    UNLIKE: "the shapes on the {n} ranks do not combine to the shape on the other side",
}  # fmt: skip


def explain(found: RankComparison, index: int, kind: str) -> tuple[str, ...]:
    """What differs, then where the difference comes from."""
    sentences = [_what(found, index, kind)]
    sentences += _how_divided(found, index)
    place = int(found.place[index])
    if found.role[index] == OUTPUT:
        sentences.append(_from_inputs(found, place))
    else:
        sentences.append(_from_before(found, index, place))
    return tuple(sentences)


def _what(found: RankComparison, index: int, kind: str) -> str:
    a, b = found.a.columns, found.b.columns
    i, j = int(found.row_a[index]), int(found.row_b[index])
    if kind == "shape":
        shapes = list(found.words.shapes)
        return f"its shape is {list(shapes[a.shape[i]])} in A and {list(shapes[b.shape[j]])} in B"
    if kind == "dtype":
        types = list(found.words.dtypes)
        return f"its type is {types[a.dtype[i]]} in A and {types[b.dtype[j]]} in B{_size(found, index)}"
    if kind == "non-finite":
        return f"A has {_defects(a, i)}, B has {_defects(b, j)}"
    if kind == "bits":
        return "all its statistics agree, but the checksums do not: a different order, different signs, or a last bit"
    if a.kind[i] == NUMBER:
        return f"the argument is {a.statistics[i, 0]:.9g} in A and {b.statistics[j, 0]:.9g} in B"
    if a.kind[i] == TEXT or b.kind[j] == TEXT:
        texts = [*found.words.texts, "a value"]
        return f"the argument is {texts[a.text[i]]} in A and {texts[b.text[j]]} in B"
    return _pattern(found, index, i, j)


def _size(found: RankComparison, index: int) -> str:
    error = found.numbers.error[index]
    return f", and the values differ by {error:.2g}" if error > 0 else ""


def _defects(columns: Columns, row: int) -> str:
    n_nan, n_inf = int(columns.n_nan[row]), int(columns.n_inf[row])
    parts = [f"{n_nan} NaN"] * (n_nan > 0) + [f"{n_inf} infinities"] * (n_inf > 0)
    if not parts and not np.isfinite(columns.statistics[row]).all():
        parts = ["NaN or infinity"]
    return " and ".join(parts) or "finite values only"


def _pattern(found: RankComparison, index: int, i: int, j: int) -> str:
    """The relative error, and its pattern: a factor, zeros, another order."""
    numbers = found.numbers
    error, factor = float(numbers.error[index]), float(numbers.factor[index])
    text = f"the relative error is {error:.2g}" if error == error else "its values differ"
    x, y = found.a.columns.statistics[i], found.b.columns.statistics[j]
    both = int(found.a.columns.has[i] & found.b.columns.has[j])
    if both & 8 and (x[3] == 0) != (y[3] == 0):
        return f"it is all zeros in {'A' if x[3] == 0 else 'B'} only"
    if np.isfinite(factor) and abs(factor + 1) < _SAME_FIGURES:
        return f"{text}: B is A with the sign changed"
    if np.isfinite(factor):
        return f"{text}: B is {factor:.6g} times A"
    scale = max(float(np.abs(x).max()), float(np.abs(y).max())) or 1.0
    is_close = (
        bool((np.abs(x - y) <= _SAME_FIGURES * scale).all()) and both & HAS_STATISTICS == HAS_STATISTICS
    )
    if is_close and error > _LARGE and numbers.evidence[index] in (SKETCH, VALUES):
        return f"{text} although max, min, mean and norm agree: the same values in another order, or with other signs"
    return text


def _how_divided(found: RankComparison, index: int) -> list[str]:
    for side, row in ((found.a, int(found.row_a[index])), (found.b, int(found.row_b[index]))):
        if side.merged is not None and (how := int(side.merged.how[row])) in _HOW:
            n, dim = int(side.merged.n_parts[row]), int(side.merged.dim[row])
            return [_HOW[how].format(n=n, dim=dim)]
    return []


def _from_inputs(found: RankComparison, place: int) -> str:
    on = (found.place == place) & (found.role != OUTPUT)
    if not on.any():
        return "the dump does not contain its inputs"
    errors = np.nan_to_num(found.numbers.error[on], nan=0.0, posinf=np.inf)
    if (found.judged[on] == EQUAL).all():
        return "its inputs are equal: this call computes a different result"
    return f"its inputs agree to {float(errors.max()):.1g}: this call amplifies the difference"


def _from_before(found: RankComparison, index: int, place: int) -> str:
    """An input that already differs on entry: which call produced it?"""
    what = "this parameter" if found.role[index] == PARAMETER else "this input"
    if found.a.columns.kind[found.row_a[index]] in (NUMBER, TEXT):
        return "the two programs, or their settings, differ here"
    maker_a = _maker(found.a, int(found.row_a[index]), int(found.match.entry_a[place]), found)
    maker_b = _maker(found.b, int(found.row_b[index]), int(found.match.entry_b[place]), found)
    if maker_a and maker_b:
        return f"{what} already differs on entry: A takes it from {maker_a}, B from {maker_b}"
    if maker_a:
        return f"{what} already differs on entry: in A it is {maker_a} unchanged, in B code outside the dump changed it"
    if maker_b:
        return f"{what} already differs on entry: in B it is {maker_b} unchanged, in A code outside the dump changed it"
    before = f", the optimizer of step {found.pair.step - 1}" if found.pair.step else ""
    return (
        f"{what} already differs on entry, and no recorded call produced it: check the data, the initial "
        f"weights{before}, or code {_between(found, place)}"
    )


def _between(found: RankComparison, place: int) -> str:
    return f"between {found.name(place - 1)} and here" if place else "before the first call"


def _maker(side: Side, row: int, entry: int, found: RankComparison) -> str:
    """The last output before `entry` with exactly the same statistics as the row; "" if there is none."""
    columns = side.columns
    end = int(columns.starts[entry])
    if not columns.has[row] & (HAS_STATISTICS | HAS_SKETCH):
        return ""
    same = (columns.statistics[:end] == columns.statistics[row]).all(axis=1) & (
        columns.has[:end] == columns.has[row]
    )
    same &= (columns.sketch[:end] == columns.sketch[row]).all(axis=1)
    roles = np.frombuffer(found.words.roles, np.int8)
    same &= roles[columns.suffix[:end]] == OUTPUT
    at = np.flatnonzero(same)
    if not len(at):
        return ""
    maker = int(np.searchsorted(columns.starts, at[-1], side="right")) - 1
    return f"{columns.entries[maker]}.{list(found.words.suffixes)[int(columns.suffix[at[-1]])]}"
