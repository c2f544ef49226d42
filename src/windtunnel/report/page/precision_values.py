"""The values of one step of one rank as columns: which calls a page lists, and the numbers of both sides.

    RankComparison, CallStates, how many ──> chosen_calls ──> value_columns ──> packed columns

Calls are listed or left out as a whole: first those where a difference starts and the calls right before them, then
those that differ, then the others, spread evenly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windtunnel.probe.compare.call_states import BOTH, CallStates
from windtunnel.probe.compare.comparison import RankComparison
from windtunnel.probe.compare.relative_errors import BITS, SKETCH, STATISTICS, VALUES
from windtunnel.probe.compare.side import Side
from windtunnel.probe.compare.tolerance import DIFFERENT, EQUAL, ROUNDING
from windtunnel.probe.compare.value_columns import NUMBER, TEXT
from windtunnel.report.page.columns import pack

__all__ = ["EVIDENCE_WORDS", "chosen_calls", "packed_texts", "value_columns"]

_BEFORE = 3  # calls before one where a difference starts
_EVIDENCE = {STATISTICS: 1, SKETCH: 2, VALUES: 3, BITS: 4}
EVIDENCE_WORDS = ("nothing", "statistics", "sketch", "every element", "checksum")
_SAME_WORD, _LONGEST_TEXT = 200, 4000


def chosen_calls(
    found: RankComparison, states: CallStates, most_values: int, most_calls: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the calls to draw, at most `most_calls`, and whether the values of each are listed, at most `most_values`."""
    n = len(states.state)
    sizes = np.bincount(found.place, minlength=n) + np.bincount(found.lone_place, minlength=n)
    rank = np.full(n, 4.0)  # priority: the smaller, the earlier
    rank[states.state == ROUNDING] = 3
    rank[(states.state == DIFFERENT) | (states.side != BOTH)] = 2
    rank[states.begins] = 1
    for back in range(_BEFORE + 1):
        if states.first - back >= 0:
            rank[states.first - back] = back / 10  # itself, then the nearest
    order = np.lexsort((_spread(n), rank))
    if n > most_calls:
        order = _worst_of_stretches(states, order, rank, most_calls)
    told = np.zeros(n, bool)
    told[order[np.cumsum(sizes[order]) <= most_values]] = True
    places = np.sort(order)
    return places, told[places]


def _spread(n: int) -> np.ndarray:
    """Return numbers whose smallest are spread evenly: 0, n/2, n/4, 3n/4, ... in bit-reversed order."""
    bits = max(1, (n - 1).bit_length())
    values, spread = np.arange(n), np.zeros(n, np.int64)
    for bit in range(bits):
        spread |= ((values >> bit) & 1) << (bits - 1 - bit)
    return spread


def _worst_of_stretches(
    states: CallStates, order: np.ndarray, rank: np.ndarray, most_calls: int
) -> np.ndarray:
    """Return the worst call of every interval, so that the chart keeps its peaks; and the most important calls."""
    n = len(states.state)
    stretch = np.arange(n) * (most_calls // 2) // n
    by_error = np.lexsort((-states.error, stretch))
    is_first = np.concatenate([[True], np.diff(stretch[by_error]) > 0])
    matters = order[rank[order] <= 1][: most_calls // 4]
    kept = np.zeros(n, bool)
    kept[by_error[is_first]] = kept[matters] = True
    more = order[~kept[order]][: most_calls - int(kept.sum())]
    kept[more] = True
    return order[kept[order]]


def value_columns(found: RankComparison, places: np.ndarray, told: np.ndarray) -> dict[str, Any]:
    """Return columns with one element per listed value; `call` is an index into `places`."""
    index = np.full(len(found.match.entry_a), -1)
    index[places[told]] = np.flatnonzero(told)
    pairs = np.flatnonzero(index[found.place] >= 0)
    lone = np.flatnonzero(index[found.lone_place] >= 0)
    lone_rows = found.lone_row[lone]
    none = np.full(len(lone), -1)
    row_a = np.concatenate([found.row_a[pairs], np.where(lone_rows >= 0, lone_rows, none)])
    row_b = np.concatenate([found.row_b[pairs], np.where(lone_rows < 0, ~lone_rows, none)])
    call = np.concatenate([index[found.place[pairs]], index[found.lone_place[lone]]])
    side = np.where(row_b < 0, 1, np.where(row_a < 0, 2, 0))
    order = np.argsort(call, kind="stable")
    row_a, row_b, call, side = row_a[order], row_b[order], call[order], side[order]
    pair = np.concatenate([pairs, none])[order]  # -1: only one side has it
    numbers, has_pair = found.numbers, pair >= 0
    suffix = np.where(
        row_a >= 0, found.a.columns.suffix[row_a], found.b.columns.suffix[row_b] if len(row_b) else 0
    )
    roles = np.frombuffer(found.words.roles, np.int8) if len(found.words.roles) else np.zeros(1, np.int8)
    flags = sum(
        (_of_pairs(flag, pair, False).astype(np.int64) << bit)
        for bit, flag in enumerate(
            (numbers.shape_differs, numbers.dtype_differs, numbers.only_one_finite, numbers.bits_differ, found.is_noise)
        )
    )  # fmt: skip
    evidence = np.array([_EVIDENCE.get(each, 0) for each in range(max(_EVIDENCE) + 1)])
    a, b = _figures(found, found.a, row_a), _figures(found, found.b, row_b)
    same = np.logical_and.reduce([_equal(left, right) for left, right in zip(a, b, strict=True)])
    texts = _Texts()
    return {
        "n": len(call),
        "call": pack(call, is_rising=True),
        "side": pack(side),
        "suffix": pack(texts.codes(found.words.suffixes, suffix)),
        "role": pack(roles[suffix]),
        "a_type": pack(texts.codes_of(_types(found, found.a, row_a))),
        "b_type": pack(texts.codes_of(_types(found, found.b, row_b))),
        "a_text": pack(texts.codes_of(_words(found, found.a, row_a))),
        "b_text": pack(texts.codes_of(_words(found, found.b, row_b))),
        "a": [pack(column) for column in a],
        # Numbers of B that equal those of A are not stored again.
        "same": pack(same),
        "b": [pack(np.where(same, 0.0, column)) for column in b],
        "a_has": pack(_has(found.a, row_a)),
        "b_has": pack(_has(found.b, row_b)),
        "error": pack(np.where(has_pair, _of_pairs(numbers.error, pair, np.nan), np.nan).astype(np.float64)),
        "judged": pack(np.where(has_pair, _of_pairs(found.judged, pair, EQUAL), 3)),
        "evidence": pack(evidence[np.where(has_pair, _of_pairs(numbers.evidence, pair, 0), 0).astype(int)]),
        "flags": pack(flags),
        "elements": _elements(found, pair),
        "texts": packed_texts(texts.found),
    }


def packed_texts(texts: list[str]) -> dict[str, Any]:
    """Pack texts as one column of bytes, separated by zeros."""
    joined = "\0".join(text.replace("\0", " ")[:_LONGEST_TEXT] for text in texts)
    return pack(np.frombuffer(joined.encode("utf-8", "backslashreplace"), np.uint8))


class _Texts:
    """Return every text once, in the order of first use."""

    def __init__(self) -> None:
        self.found: list[str] = [""]
        self._codes = {"": 0}

    def code(self, text: str) -> int:
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self.found)
            self.found.append(text)
        return code

    def codes_of(self, texts: list[str]) -> np.ndarray:
        return np.array([self.code(text) for text in texts], np.int64).reshape(-1)

    def codes(self, words: dict[str, int], chosen: np.ndarray) -> np.ndarray:
        names = list(words)
        used, at = np.unique(chosen, return_inverse=True)
        return np.array([self.code(names[each]) for each in used.tolist()] or [0])[at.reshape(-1)]


def _of_pairs(column: np.ndarray, pair: np.ndarray, missing: Any) -> np.ndarray:
    return np.where(pair >= 0, column[pair], missing) if len(column) else np.full(len(pair), missing)


def _figures(found: RankComparison, side: Side, rows: np.ndarray) -> list[np.ndarray]:
    """Return max, min, mean, norm, NaNs, infinities, zeros; 0 where there is none."""
    columns, there = side.columns, rows >= 0
    if not columns.n_rows:
        return [np.zeros(len(rows)) for _ in range(7)]
    figures = [columns.statistics[rows, i] for i in range(4)]
    figures += [columns.n_nan[rows], columns.n_inf[rows], columns.n_zero[rows]]
    return [np.where(there, figure, 0) for figure in figures]


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a == b) | ((a != a) & (b != b))


def _has(side: Side, rows: np.ndarray) -> np.ndarray:
    """Return bits: which of max, min, mean and norm are given; 16 for a single number."""
    columns = side.columns
    if not columns.n_rows:
        return np.zeros(len(rows), np.int64)
    bits = np.where(columns.kind[rows] == NUMBER, 16, columns.has[rows] & 15)
    return np.where(rows >= 0, bits, 0).astype(np.int64)


def _types(found: RankComparison, side: Side, rows: np.ndarray) -> list[str]:
    """`float32 8x8`, or the type of an argument."""
    columns = side.columns
    types = list(found.words.dtypes)
    shapes = ["x".join(map(str, shape)) for shape in found.words.shapes]
    texts: dict[tuple[int, int], str] = {}
    result = []
    for row in rows.tolist():
        if row < 0:
            result.append("")
            continue
        key = int(columns.dtype[row]), int(columns.shape[row])
        if key not in texts:
            texts[key] = f"{types[key[0]].removeprefix('torch.')} {shapes[key[1]]}".rstrip()
        result.append(texts[key])
    return result


def _words(found: RankComparison, side: Side, rows: np.ndarray) -> list[str]:
    """Return arguments that are neither tensors nor numbers."""
    columns, texts = side.columns, list(found.words.texts)
    return [
        texts[int(columns.text[row])][:_SAME_WORD] if row >= 0 and columns.kind[row] == TEXT else ""
        for row in rows.tolist()
    ]


def _elements(found: RankComparison, pair: np.ndarray) -> dict[str, Any]:
    """Return the elementwise comparison, where both dumps have the tensors."""
    rows = [(at, found.tensors[each]) for at, each in enumerate(pair.tolist()) if each in found.tensors]
    names = ("cosine", "euclidean", "max_abs", "max_relative", "one_thousandth", "five_thousandths")
    return {"value": pack([at for at, _ in rows], is_rising=True)} | {
        name: pack([float(getattr(numbers, name)) for _, numbers in rows]) for name in names
    }
