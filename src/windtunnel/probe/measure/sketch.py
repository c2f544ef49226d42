"""Eight numbers that summarise a tensor's values and their order.

    values in C order ──> rows of 1024 ──> two weighted sums of the rows ──> eight weighted sums of the columns

Everything is linear, so the sketch of a difference is the difference of the sketches. The weights have mean zero and
unit variance, so `distance(a, b)` estimates the Euclidean norm of the difference of the two tensors: it detects a
permutation or flipped signs, which do not change maximum, minimum, mean and norm.

Element i has the weight v(i // 1024) * u(i % 1024). Numbers 0 to 3 use one sequence v, numbers 4 to 7 another; every
number has its own u. No weight is near zero, so a single changed element shows in all eight numbers. The weights come
from a splitmix64 stream by integer arithmetic alone and are the same on every machine and in every framework; only the
rounding of the sums differs between machines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = [
    "FOLDS",
    "NUMBERS",
    "ROW",
    "column_weights",
    "distance",
    "finish_sketch",
    "row_weights",
    "row_weights_between",
]

ROW = 1024  # elements folded into one row
FOLDS = 2  # sequences of row weights
NUMBERS = 8  # numbers in a sketch

_SMALLEST = 0.5  # no weight is smaller in size,
_LARGEST = (math.sqrt(45) - 1) / 4  # so that sizes drawn evenly between the two have a mean square of one
_GOLDEN = 0x9E3779B97F4A7C15
_ROW_SEED, _COLUMN_SEED = 0x77696E6474756E6E, 0x656C736B65746368


def row_weights(n_rows: int) -> np.ndarray:
    """The weights of rows 0 to n_rows, float64, one line per fold."""
    return row_weights_between(0, n_rows)


def row_weights_between(first: int, last: int) -> np.ndarray:
    """The weights of rows `first` to `last` (excluded), float64, one line per fold."""
    rows = np.arange(first, last, dtype=np.uint64) * np.uint64(FOLDS)
    return np.stack([_weights(rows + np.uint64(fold), _ROW_SEED) for fold in range(FOLDS)])


def column_weights() -> np.ndarray:
    """The weights of the columns, float64, one line per number of the sketch."""
    return _weights(np.arange(NUMBERS * ROW, dtype=np.uint64), _COLUMN_SEED).reshape(NUMBERS, ROW)


def finish_sketch(folds: np.ndarray) -> tuple[float, ...]:
    """From the weighted sums of the rows, FOLDS lines of ROW float64, to the sketch."""
    each = NUMBERS // FOLDS
    parts = [_COLUMNS[each * i : each * (i + 1)].dot(fold) for i, fold in enumerate(folds)]
    return tuple(np.concatenate(parts).tolist())


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """An estimate of the Euclidean norm of the difference of two tensors, from their sketches."""
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / len(a))


def _weights(places: np.ndarray, seed: int) -> np.ndarray:
    """The weights at these places of a splitmix64 stream: any place can be computed without those before it."""
    z = (places + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(seed)  # wraps round at 64 bits, as it should
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    size = (z >> np.uint64(12)).astype(np.float64) * 2.0**-52  # [0, 1); the lowest bit gives the sign
    size = _SMALLEST + (_LARGEST - _SMALLEST) * size
    # Rounded, so that tensors of every type have the same weights.
    return np.where(z & np.uint64(1), -size, size).astype(np.float32).astype(np.float64)


_COLUMNS = column_weights()
