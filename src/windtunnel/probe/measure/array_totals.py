"""The statistics of an array with numpy, block by block: quickly, or carefully where quick sums lose precision.

    blocks ──> QuickTotals ──> total or squares not finite, or squares vanished? ──> CarefulTotals

`windtunnel.probe.measure.fused` does the quick part in one pass; this runs where the extension was not built, and for
complex numbers. Blocks fit into a core's second-level cache, so each pass over a block reads it from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from windtunnel.probe.measure.sketch import FOLDS, ROW, finish_sketch, row_weights

__all__ = ["BLOCK", "CarefulTotals", "QuickTotals", "c_order_blocks", "needs_care", "widen_bfloat16"]

_ROWS = 64
BLOCK = _ROWS * ROW  # elements in a block: 256 KiB of float32, which leaves room in a second-level cache
_HALF = _ROWS // 2


class QuickTotals:
    """Sums in float32 within a block (float64 for float64 and integers) and in float64 over blocks."""

    def __init__(self, dtype: np.dtype, bfloat16: bool = False):
        self.bfloat16 = bfloat16
        self.kind = "f" if bfloat16 else dtype.kind
        self.is_single = (
            self.kind == "b" or (self.kind == "f" and dtype.itemsize <= 4) or dtype == np.complex64
        )
        self.n = self.n_zero = self.row = 0
        self.max: Any = None  # numpy's numbers; None before the first block
        self.min: Any = None
        self.total = self.squares = 0.0
        self.folds = np.zeros((FOLDS, ROW))

    def add(self, block: np.ndarray) -> None:
        """Add a block: a multiple of ROW elements, unless it is the last one."""
        values = self.values(block)
        ranged = np.abs(block) if self.kind == "c" else block if self.kind in "iu" else values
        high, low = np.maximum.reduce(ranged), np.minimum.reduce(ranged)
        self.max = high if self.max is None else np.maximum(self.max, high)  # NaN if either is
        self.min = low if self.min is None else np.minimum(self.min, low)
        if not (low > 0 or high < 0):
            self.n_zero += int(np.count_nonzero(ranged == 0))
        self.n += block.size
        total = 0.0
        n_rows, rest = divmod(values.size, ROW)
        if n_rows:
            rows = values[: n_rows * ROW].reshape(n_rows, ROW)
            sums = np.dot(_weights(self.row, n_rows, values.dtype), rows)
            self.folds += sums[:FOLDS]
            total += float(sums[FOLDS:].sum(dtype=np.float64))
            self.squares += float(_vecdot(rows, rows).sum(dtype=np.float64))
        if rest:
            last = values[n_rows * ROW :]
            self.folds[:, :rest] += _row_table(self.row + n_rows + 1)[:, self.row + n_rows, None] * last
            total += float(last.sum(dtype=np.float64))
            self.squares += float(np.dot(last, last))
        self.row += n_rows + (rest > 0)
        self.total += float(ranged.sum(dtype=np.float64)) if self.kind == "c" else total

    def values(self, block: np.ndarray) -> np.ndarray:
        """The block as the floats that are summed."""
        if self.bfloat16:
            return widen_bfloat16(block)
        if self.kind == "c":
            return block.view(block.real.dtype)
        return block.astype(np.float32 if self.is_single else np.float64, copy=False)

    def sketch(self) -> tuple[float, ...]:
        return finish_sketch(self.folds)


class CarefulTotals:
    """The same in float64, skipping NaN and infinity, scaled so that squares neither overflow nor underflow."""

    def __init__(self, dtype: np.dtype, bfloat16: bool, largest: float):
        self._values = QuickTotals(dtype, bfloat16).values
        self._is_complex = dtype.kind == "c"
        self._scale = 2.0 ** -min(max(math.frexp(largest)[1], -1000), 1000) if math.isfinite(largest) else 1.0
        self._squares, self._row = 0.0, 0
        self._folds = np.zeros((FOLDS, ROW))
        self.n_nan = self.n_inf = 0
        self.total = 0.0

    def add(self, block: np.ndarray) -> None:
        values = self._values(block).astype(np.float64)
        sizes = np.abs(block).astype(np.float64) if self._is_complex else values
        self.n_nan += int(np.count_nonzero(np.isnan(sizes)))
        self.n_inf += int(np.count_nonzero(np.isinf(sizes)))
        self.total += float(sizes.sum())
        scaled = sizes * self._scale
        self._squares += float(np.dot(scaled, scaled))
        values[~np.isfinite(values)] = 0.0
        n_rows = -(-values.size // ROW)
        rows = np.zeros((n_rows, ROW))
        rows.reshape(-1)[: values.size] = values
        self._folds += np.dot(_row_table(self._row + n_rows)[:, self._row : self._row + n_rows], rows)
        self._row += n_rows

    @property
    def norm(self) -> float:
        return math.sqrt(self._squares) / self._scale if self._squares == self._squares else math.nan

    def sketch(self) -> tuple[float, ...] | None:
        """None if it is too large for float64."""
        numbers = finish_sketch(self._folds)
        return numbers if all(map(math.isfinite, numbers)) else None


def c_order_blocks(array: np.ndarray, n: int) -> Iterator[np.ndarray]:
    """Yield one-dimensional blocks of n elements, the last one shorter; a block is valid until the next is asked for.

    Never holds more than one block, so an expanded array (stride 0) costs no memory.
    """
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        for start in range(0, flat.size, n):
            yield flat[start : start + n]
        return
    block, filled = np.empty(min(n, array.size), array.dtype), 0
    for piece in _pieces(array, block.size):
        block[filled : filled + piece.size].reshape(piece.shape)[...] = piece
        filled += piece.size
        if filled == block.size:
            yield block
            filled = 0
    if filled:
        yield block[:filled]


def _pieces(array: np.ndarray, n: int) -> Iterator[np.ndarray]:
    """Cut an array into sub-arrays, in C order, so that their sizes fill blocks of n exactly."""
    room = n
    todo = [array]  # last one first
    while todo:
        part = todo.pop()
        if part.size > room:
            inner = part.size // part.shape[0]
            whole = room // inner
            if not whole:
                todo += [part[1:], part[0]] if len(part) > 1 else [part[0]]
                continue
            todo.append(part[whole:])
            part = part[:whole]
        yield part
        room = room - part.size or n


def widen_bfloat16(block: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 bits: the same bits, and sixteen zeros below them."""
    wide = np.zeros(block.size, np.float32)
    wide.view(np.uint16)[_HIGH_HALF::2] = block.view(np.uint16)
    return wide


def needs_care(total: float, squares: float, n: int, high: float, low: float, is_single: bool) -> bool:
    """Whether quick sums lost something: overflow, NaN, infinity, or squares that underflow to zero."""
    small, large = _SINGLE if is_single else _DOUBLE
    if squares < n * small:
        return high != 0 or low != 0
    # NaN is never between two numbers, so these are false for it.
    return not (-large < low <= high < large and squares < math.inf and -math.inf < total < math.inf)


def _weights(first: int, n_rows: int, dtype: np.dtype) -> np.ndarray:
    """The folds' weights of rows, and below them ones in steps: a row for every 32, whose sums stay exact enough."""
    key = first, n_rows, dtype
    weights = _WEIGHTS.get(key)
    if weights is None:
        n_sums = -(-n_rows // _HALF)
        weights = np.zeros((FOLDS + n_sums, n_rows), dtype)
        weights[:FOLDS] = _row_table(first + n_rows)[:, first : first + n_rows]
        for i in range(n_sums):
            weights[FOLDS + i, i * _HALF : (i + 1) * _HALF] = 1
        if len(_WEIGHTS) >= _MOST_WEIGHTS:
            _WEIGHTS.clear()
        _WEIGHTS[key] = weights
    return weights


def _row_table(n_rows: int) -> np.ndarray:
    """The weights of at least n_rows rows; grows by doubling and is shared."""
    global _TABLE
    table = _TABLE
    if table.shape[1] < n_rows:
        table = _TABLE = row_weights(max(n_rows, 2 * table.shape[1]))
    return table


def _einsum_vecdot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", a, b)


# A mean square below the first may have lost squares that the type cannot hold; sums of values above the second, weighted
# for the sketch, may overflow it.
_SINGLE, _DOUBLE = (1e-31, 1e30), (1e-292, 1e300)
_vecdot = getattr(np, "vecdot", _einsum_vecdot)  # numpy 2
_HIGH_HALF = 1 if np.little_endian else 0
_MOST_WEIGHTS = 4096  # 1 KiB each
_WEIGHTS: dict[tuple[int, int, np.dtype], np.ndarray] = {}
_TABLE = row_weights(_ROWS)
