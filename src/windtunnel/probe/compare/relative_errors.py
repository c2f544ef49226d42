"""How far apart the two values of every pair are: one relative error each, from the best available evidence.

    columns of A, columns of B, rows ──> PairNumbers (arrays, no loops)

Evidence, best first: equal checksums (the bytes are the same), sketches (their distance estimates that of the tensors,
so permutations, signs and factors are detected), the four statistics (each gives a lower bound of the error). Errors are
relative to the larger of the two norms; NaN equals NaN, and a NaN or infinity on one side only is an infinite error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.probe.compare.value_columns import (
    HAS_DIGEST,
    HAS_SKETCH,
    HAS_STATISTICS,
    NUMBER,
    SKETCH_NUMBERS,
    TENSOR,
    TEXT,
    Columns,
    Vocabulary,
)

__all__ = [
    "BITS",
    "NOTHING",
    "SKETCH",
    "STATISTICS",
    "VALUES",
    "PairNumbers",
    "element_counts",
    "leave_out",
    "pair_numbers",
]

NOTHING, STATISTICS, SKETCH, VALUES, BITS = 0, 1, 2, 3, 4  # evidence of an error

_CLEARLY = 4  # times smaller is the error once a factor is removed: more than chance explains
_CHUNK = 1 << 17  # pairs at a time: a million sketches twice over would fill the memory


@dataclass(slots=True)
class PairNumbers:
    """One element per pair of values."""

    error: np.ndarray  # relative; NaN where nothing could be compared
    evidence: np.ndarray
    bits_differ: np.ndarray  # both have a checksum, and these are not equal
    shape_differs: np.ndarray
    dtype_differs: np.ndarray
    only_one_finite: np.ndarray  # NaN or infinity on one side, or a different number of them
    factor: np.ndarray  # B is about this many times A; NaN if that is not known or not the case
    n_elements: np.ndarray
    rms: np.ndarray  # root mean square of the larger side; 0 where it is not known


def pair_numbers(
    a: Columns, b: Columns, row_a: np.ndarray, row_b: np.ndarray, words: Vocabulary, *, digests: bool = True
) -> PairNumbers:
    """Compare row_a[i] of A with row_b[i] of B. Without `digests`, checksums are ignored."""
    counts = element_counts(words)
    parts = [
        _chunk(a, b, row_a[at : at + _CHUNK], row_b[at : at + _CHUNK], counts, digests)
        for at in range(0, max(len(row_a), 1), _CHUNK)
    ]
    if len(parts) == 1:
        return parts[0]
    names = PairNumbers.__slots__
    return PairNumbers(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def leave_out(numbers: PairNumbers, chosen: np.ndarray) -> None:
    """Exclude pairs from the judgement: their numbers prove nothing."""
    numbers.error[chosen], numbers.evidence[chosen], numbers.factor[chosen] = np.nan, NOTHING, np.nan
    for flags in (numbers.shape_differs, numbers.dtype_differs, numbers.only_one_finite, numbers.bits_differ):
        flags[chosen] = False


def element_counts(words: Vocabulary) -> np.ndarray:
    """Elements of every shape of the vocabulary."""
    with np.errstate(over="ignore"):  # sizes that no tensor has, in a damaged file
        return np.array([float(np.prod(shape, dtype=float)) for shape in words.shapes] or [1.0])


def _chunk(
    a: Columns, b: Columns, row_a: np.ndarray, row_b: np.ndarray, counts: np.ndarray, digests: bool
) -> PairNumbers:
    with np.errstate(all="ignore"):
        kind_a, kind_b = a.kind[row_a], b.kind[row_b]
        is_tensor = (kind_a == TENSOR) & (kind_b == TENSOR)
        n = np.maximum(counts[a.shape[row_a]], 1.0)
        both = a.has[row_a] & b.has[row_b]
        shape_differs = is_tensor & (a.shape[row_a] != b.shape[row_b])
        dtype_differs = (is_tensor & (a.dtype[row_a] != b.dtype[row_b])) | (is_tensor != (kind_a == TENSOR))
        norm = _norms(a, row_a, b, row_b, n)
        error, only_one_finite = _by_statistics(a.statistics[row_a], b.statistics[row_b], both, norm, n)
        evidence = np.where(both & HAS_STATISTICS, STATISTICS, NOTHING).astype(np.int8)
        only_one_finite |= (a.n_nan[row_a] != b.n_nan[row_b]) | (a.n_inf[row_a] != b.n_inf[row_b])
        # The sketch skips NaN and infinity, so two sketches cover the same elements only if as many are skipped.
        has_sketch = ((both & HAS_SKETCH) != 0) & ~shape_differs & ~only_one_finite
        factor = _by_sketch(a, row_a, b, row_b, norm, has_sketch, error, evidence)
        bits_differ = np.zeros(len(row_a), bool)
        if digests:
            has_digest = ((both & HAS_DIGEST) != 0) & (a.digest_kind[row_a] == b.digest_kind[row_b])
            is_equal = a.digest[row_a] == b.digest[row_b]
            is_same = has_digest & is_equal & ~shape_differs & ~dtype_differs
            error[is_same], evidence[is_same], only_one_finite[is_same], factor[is_same] = (
                0.0,
                BITS,
                False,
                np.nan,
            )
            bits_differ = has_digest & ~is_equal
        _by_value(a, row_a, b, row_b, kind_a, kind_b, error, evidence, only_one_finite)
        error[only_one_finite] = np.inf
        rms = np.where(np.isfinite(norm), norm, 0.0) / np.sqrt(n)
    return PairNumbers(
        error, evidence, bits_differ, shape_differs, dtype_differs, only_one_finite, factor, n, rms
    )


def _norms(a: Columns, row_a: np.ndarray, b: Columns, row_b: np.ndarray, n: np.ndarray) -> np.ndarray:
    """The larger norm of each pair; if none was written, from the sketch, else from the extremes."""
    found = np.zeros(len(row_a))
    for columns, rows in ((a, row_a), (b, row_b)):
        has, figures = columns.has[rows], columns.statistics[rows]
        norm = np.where(has & 8, figures[:, 3], np.nan)
        missing = ~np.isfinite(norm)
        if missing.any():
            largest = np.nanmax(np.abs(np.where(np.isfinite(figures[:, :2]), figures[:, :2], 0.0)), axis=1)
            guess = np.where(has & 3, largest * np.sqrt(n), 0.0)
            spread = np.sqrt(np.square(columns.sketch[rows]).sum(axis=1) / SKETCH_NUMBERS)
            norm = np.where(missing, np.where(has & HAS_SKETCH, spread, guess), norm)
        found = np.maximum(found, norm)
    return found


def _by_statistics(
    a: np.ndarray, b: np.ndarray, both: np.ndarray, norm: np.ndarray, n: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The largest of the relative errors of maximum, minimum, mean and norm."""
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    extremes = np.concatenate([np.where(finite_a, a, 0.0)[:, :2], np.where(finite_b, b, 0.0)[:, :2]], axis=1)
    largest = np.abs(extremes).max(axis=1, initial=0.0)
    rms = np.where(norm > 0, norm / np.sqrt(n), largest)
    error = np.full(len(a), np.nan)
    only_one_finite = np.zeros(len(a), bool)
    for index, scale in enumerate((largest, largest, rms, norm)):
        has = (both & (1 << index)) != 0
        x, y = a[:, index], b[:, index]
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        usable = finite_a[:, index] & finite_b[:, index]
        each = np.where(same, 0.0, np.abs(x - y) / np.maximum(scale, np.finfo(float).tiny))
        error = np.where(has & (same | usable), np.fmax(error, each), error)
        only_one_finite |= has & ~same & ~usable
    return error, only_one_finite


def _by_sketch(
    a: Columns, row_a: np.ndarray, b: Columns, row_b: np.ndarray, norm: np.ndarray, chosen: np.ndarray,
    error: np.ndarray, evidence: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Replace errors by those of the sketches; return the factor between the sides if one explains the difference."""
    factor = np.full(len(row_a), np.nan)
    at = np.flatnonzero(chosen)
    if not len(at):
        return factor
    x, y = a.sketch[row_a[at]], b.sketch[row_b[at]]
    distance = np.sqrt(np.square(x - y).sum(axis=1) / SKETCH_NUMBERS)
    spread = np.sqrt(np.maximum(np.square(x).sum(axis=1), np.square(y).sum(axis=1)) / SKETCH_NUMBERS)
    scale = np.where(np.isfinite(norm[at]) & (norm[at] > 0), norm[at], spread)
    found = np.where(distance == 0, 0.0, distance / np.maximum(scale, np.finfo(float).tiny))
    # An element can change without moving the sketch's last printed digit; a maximum is printed in full.
    error[at] = np.where(found == 0, np.nan_to_num(error[at]), found)
    evidence[at] = SKETCH
    times = (x * y).sum(axis=1) / np.square(x).sum(axis=1)
    rest = np.sqrt(np.square(y - times[:, None] * x).sum(axis=1) / SKETCH_NUMBERS) / np.maximum(scale, 1e-300)
    factor[at] = np.where((found > 0) & (rest < np.abs(times - 1.0) / _CLEARLY), times, np.nan)
    return factor


def _by_value(
    a: Columns, row_a: np.ndarray, b: Columns, row_b: np.ndarray, kind_a: np.ndarray, kind_b: np.ndarray,
    error: np.ndarray, evidence: np.ndarray, only_one_finite: np.ndarray,
) -> None:  # fmt: skip
    """Compare numbers and strings among the arguments."""
    is_number = (kind_a == NUMBER) & (kind_b == NUMBER)
    x, y = a.statistics[row_a, 0], b.statistics[row_b, 0]
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    apart = np.abs(x - y) / np.maximum(np.abs(x), np.abs(y))
    error[is_number] = np.where(same, 0.0, apart)[is_number]
    only_one_finite[is_number] = (~same & ~(np.isfinite(x) & np.isfinite(y)))[is_number]
    is_text = (kind_a == TEXT) | (kind_b == TEXT)
    equal_text = (kind_a == kind_b) & (a.text[row_a] == b.text[row_b])
    error[is_text] = np.where(equal_text, 0.0, 1.0)[is_text]
    evidence[is_number | is_text] = VALUES
    other = (kind_a != kind_b) & ~is_text  # a number here, a tensor there
    error[other], evidence[other] = np.nan, NOTHING
