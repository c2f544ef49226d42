"""Align two sequences that are mostly equal, so that an extra element on one side shifts nothing.

    codes of both sides, strictest first ──> common ends ──> unique anchors ──> small gaps by dynamic programming
                                                                           └──> pairs (i, j), both ascending

A level gives each element a code; elements with equal codes may be the same. Strict levels (equal values) are used
before loose ones (equal structure): certain pairs narrow down the uncertain ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

__all__ = ["align"]

Gap = tuple[int, int, int, int]  # a_from, a_to, b_from, b_to

_FEW_CELLS = 40_000  # of a gap: up to here the best alignment is computed exactly
_GRAM = 4  # consecutive elements that make a place unique where single ones do not
_AHEAD = 64  # elements to look ahead in a gap that is too large and has no unique place


def align(levels_a: Sequence[np.ndarray], levels_b: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """Pairs of indices in ascending order. All levels of a side have the same length."""
    pairs: list[tuple[int, int]] = []
    gaps: list[Gap] = [(0, len(levels_a[0]), 0, len(levels_b[0]))]
    for level, (codes_a, codes_b) in enumerate(zip(levels_a, levels_b, strict=True)):
        gaps = _narrow(codes_a, codes_b, gaps, pairs)
        is_last = level == len(levels_a) - 1
        small = [gap for gap in gaps if is_last or (level > 0 and _cells(gap) <= _FEW_CELLS)]
        gaps = [gap for gap in gaps if not is_last and (level == 0 or _cells(gap) > _FEW_CELLS)]
        for gap in small:
            pairs += (
                _best(levels_a, levels_b, gap)
                if _cells(gap) <= _FEW_CELLS
                else _greedy(codes_a, codes_b, gap)
            )
    return sorted(pairs)


def _cells(gap: Gap) -> int:
    return (gap[1] - gap[0]) * (gap[3] - gap[2])


def _narrow(a: np.ndarray, b: np.ndarray, gaps: list[Gap], pairs: list[tuple[int, int]]) -> list[Gap]:
    """Pair common ends and unique anchors of every gap; return the remaining gaps."""
    left: list[Gap] = []
    for gap in gaps:
        open_gaps = [gap]
        while open_gaps:
            trimmed = _trim(a, b, open_gaps.pop(), pairs)
            if not _cells(trimmed):
                continue
            anchors = _anchors(a, b, trimmed, 1) or _anchors(a, b, trimmed, _GRAM)
            if not anchors:
                left.append(trimmed)
                continue
            pairs += anchors
            bounds = [(trimmed[0] - 1, trimmed[2] - 1), *anchors, (trimmed[1], trimmed[3])]
            for (i, j), (i_next, j_next) in pairwise(bounds):
                open_gaps.append((i + 1, i_next, j + 1, j_next))
    return left


def _trim(a: np.ndarray, b: np.ndarray, gap: Gap, pairs: list[tuple[int, int]]) -> Gap:
    """Pair equal elements at both ends, the back first.

    A gap begins where values begin to differ: if one side is longer, the extra element is most likely there.
    """
    a_from, a_to, b_from, b_to = gap
    n = min(a_to - a_from, b_to - b_from)
    n_back = _common(a[a_to - n : a_to][::-1], b[b_to - n : b_to][::-1])
    pairs += zip(range(a_to - n_back, a_to), range(b_to - n_back, b_to), strict=True)
    a_to, b_to, n = a_to - n_back, b_to - n_back, n - n_back
    n_front = _common(a[a_from : a_from + n], b[b_from : b_from + n])
    pairs += zip(range(a_from, a_from + n_front), range(b_from, b_from + n_front), strict=True)
    return a_from + n_front, a_to, b_from + n_front, b_to


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """How many elements are equal at the front."""
    different = np.flatnonzero(a != b)
    return int(different[0]) if len(different) else len(a)


def _anchors(a: np.ndarray, b: np.ndarray, gap: Gap, gram: int) -> list[tuple[int, int]]:
    """Elements, or starts of n-grams, that occur once on each side; as many as keep their order."""
    a_from, a_to, b_from, b_to = gap
    grams_a, grams_b = _grams(a[a_from:a_to], gram), _grams(b[b_from:b_to], gram)
    unique_a, where_a, counts_a = np.unique(grams_a, return_index=True, return_counts=True)
    unique_b, where_b, counts_b = np.unique(grams_b, return_index=True, return_counts=True)
    _, in_a, in_b = np.intersect1d(unique_a, unique_b, assume_unique=True, return_indices=True)
    is_single = (counts_a[in_a] == 1) & (counts_b[in_b] == 1)
    i, j = where_a[in_a[is_single]] + a_from, where_b[in_b[is_single]] + b_from
    order = np.argsort(i)
    return _longest_rising(i[order].tolist(), j[order].tolist())


def _grams(codes: np.ndarray, n: int) -> np.ndarray:
    if n == 1:
        return codes
    codes = codes.astype(np.uint64)
    found = np.zeros(max(0, len(codes) - n + 1), np.uint64)
    for shift in range(n):
        found = found * np.uint64(0x9E3779B97F4A7C15) + codes[shift : shift + len(found)]
    return found


def _longest_rising(i: list[int], j: list[int]) -> list[tuple[int, int]]:
    """The longest subsequence in which j increases too."""
    ends: list[int] = []  # smallest last j of an increasing sequence of each length
    at: list[int] = []  # where that sequence ends
    before = [-1] * len(j)
    for index, value in enumerate(j):
        length = bisect_left(ends, value)
        before[index] = at[length - 1] if length else -1
        ends[length : length + 1] = [value]
        at[length : length + 1] = [index]
    chain = []
    index = at[-1] if at else -1
    while index >= 0:
        chain.append((i[index], j[index]))
        index = before[index]
    return chain[::-1]


def _best(levels_a: Sequence[np.ndarray], levels_b: Sequence[np.ndarray], gap: Gap) -> list[tuple[int, int]]:
    """The alignment of a small gap with the highest score: the stricter its level, the more a pair counts."""
    a_from, a_to, b_from, b_to = gap
    n, m = a_to - a_from, b_to - b_from
    score = np.zeros((n, m))
    for a, b in zip(reversed(levels_a), reversed(levels_b), strict=True):
        score = 1.5 * score + (a[a_from:a_to, None] == b[None, b_from:b_to])
    best = np.zeros((n + 1, m + 1))
    for i in range(n):  # rows one by one; along a row, skipping elements of B is a running maximum
        row = np.maximum(best[i, 1:], np.where(score[i] > 0, best[i, :-1] + score[i], 0))
        best[i + 1, 1:] = np.maximum.accumulate(row)
    pairs = []
    i, j = n, m
    while i and j:
        if best[i, j] == best[i, j - 1]:
            j -= 1
        elif best[i, j] == best[i - 1, j]:
            i -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((a_from + i, b_from + j))
    return pairs


def _greedy(a: np.ndarray, b: np.ndarray, gap: Gap) -> list[tuple[int, int]]:
    """Pair each element of A with the next equal one of B, if it is near."""
    a_from, a_to, b_from, b_to = gap
    pairs = []
    j = b_from
    for i in range(a_from, a_to):
        near = np.flatnonzero(b[j : min(j + _AHEAD, b_to)] == a[i])
        if len(near):
            j += int(near[0])
            pairs.append((i, j))
            j += 1
    return pairs
