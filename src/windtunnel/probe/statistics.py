"""What a dump says about one tensor: its range, size, defects, order and bytes.

    array ──> blocks ──> running totals ──> Statistics ──> JSON

Sums are kept in float64 over blocks that are summed in float32 (float64 for float64 and integers). A total that is not
finite, or so small that squares vanished, is computed once more with care, so a norm overflows only if float64 does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from windtunnel.probe.array_blocks import c_order_blocks
from windtunnel.probe.checksum import crc32, crc_text, xor_text, xor_words
from windtunnel.probe.sketch import FOLDS, ROW, finish_sketch, row_weights

__all__ = ["BLOCK", "Statistics", "array_statistics", "array_xor", "statistics_json"]

BLOCK = 64 * ROW  # elements in a block: 256 KiB of float32


@dataclass(slots=True)
class Statistics:
    """None stands where a value has no meaning: an empty tensor has no maximum."""

    max: float | int | bool | None = None
    min: float | int | bool | None = None
    mean: float | None = None
    norm: float | None = None
    nan_count: int | None = None
    inf_count: int | None = None
    zero_count: int | None = None
    sketch: tuple[float, ...] | None = None  # of the finite values; the others count as zero
    crc: str | None = None


def array_statistics(array: np.ndarray, *, crc: bool = False, bfloat16: bool = False) -> Statistics:
    """Measure an array of numbers or booleans, of any strides; `bfloat16` says that the 16-bit integers are bfloat16.

    Maximum and minimum are NaN if any element is. Complex numbers are measured by their size, and their sketch is that
    of real and imaginary parts in turn.
    """
    found = Statistics()
    if array.size == 0 or array.dtype.kind not in "fiubc":
        return found
    totals = _Totals(array.dtype, bfloat16)
    checksum = 0
    with np.errstate(all="ignore"):
        for block in c_order_blocks(array, BLOCK):
            if crc:
                checksum = crc32(block, checksum)
            totals.add(block)
        if totals.need_care():
            careful = _Careful(totals)
            for block in c_order_blocks(array, BLOCK):
                careful.add(block)
            careful.report(found)
        else:
            totals.report(found)
    if crc:
        found.crc = crc_text(checksum)
    return found


def array_xor(array: np.ndarray) -> Statistics:
    """Only the xor of the array's 64-bit words: summary mode "xor"."""
    word = 0
    for block in c_order_blocks(array, BLOCK):
        word = xor_words(block, word)
    return Statistics(crc=xor_text(word))


def statistics_json(found: Statistics, *, strict: bool = False) -> tuple[str, str]:
    """The figures msProbe writes, and those it does not, as text to stand between other keys of a JSON object.

    `strict` writes "NaN" and "Infinity" as strings instead of the bare words, which JSON does not know.
    """
    number = _strict_number if strict else _number
    head = (
        f'"Max": {number(found.max)}, "Min": {number(found.min)}, '
        f'"Mean": {number(found.mean)}, "Norm": {number(found.norm)}'
    )
    tail = []
    if found.nan_count:
        tail.append(f'"nan_count": {found.nan_count}')
    if found.inf_count:
        tail.append(f'"inf_count": {found.inf_count}')
    if found.zero_count:
        tail.append(f'"zero_count": {found.zero_count}')
    if found.sketch is not None:
        tail.append('"sketch": [' + ", ".join([f"{number:.8g}" for number in found.sketch]) + "]")
    return head, ", ".join(tail)


def _number(value: float | int | bool | None) -> str:
    if type(value) is float:
        if value - value == 0.0:
            return repr(value)
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return "null" if value is None else "true" if value is True else "false" if value is False else str(value)


def _strict_number(value: float | int | bool | None) -> str:
    if type(value) is float and value - value != 0.0:
        return f'"{_number(value)}"'
    return _number(value)


class _Totals:
    """Running totals over blocks, as fast as numpy allows: each pass reads a block that is still in the cache."""

    def __init__(self, dtype: np.dtype, bfloat16: bool):
        self.dtype, self.bfloat16 = dtype, bfloat16
        self.kind = "f" if bfloat16 else dtype.kind
        wide = self.kind in "iu" or (dtype.itemsize == 8 and self.kind == "f") or dtype.itemsize == 16
        self.work = np.dtype(np.float64 if wide else np.float32)
        self.n = self.n_zero = self.row = 0
        self.max = self.min = None
        self.total = self.squares = 0.0
        self.folds = np.zeros((FOLDS, ROW))

    def values(self, block: np.ndarray) -> np.ndarray:
        """The block as the floats that are summed."""
        if self.bfloat16:
            wide = np.zeros(block.size, np.float32)
            wide.view(np.uint16)[_HIGH_HALF::2] = block.view(np.uint16)
            return wide
        if self.kind == "c":
            return block.view(block.real.dtype)
        return block if block.dtype == self.work else block.astype(self.work)

    def add(self, block: np.ndarray) -> None:
        values = self.values(block)
        ordered = np.abs(block) if self.kind == "c" else block if self.kind in "iu" else values
        high, low = np.maximum.reduce(ordered), np.minimum.reduce(ordered)
        # numpy's maximum of two NaN or a NaN and a number is NaN
        self.max = high if self.max is None else np.maximum(self.max, high)
        self.min = low if self.min is None else np.minimum(self.min, low)
        if not (low > 0 or high < 0):
            self.n_zero += ordered.size - np.count_nonzero(ordered != 0)
        self.n += block.size
        if values.size == ROW * _ROWS:
            self._add_rows(values.reshape(_ROWS, ROW), ordered)
        else:
            self._add_part(values, ordered)

    def _add_rows(self, rows: np.ndarray, ordered: np.ndarray) -> None:
        self.squares += float(_vecdot(rows, rows).sum(dtype=np.float64))
        weights = _block_weights(self.row, self.work)
        folds = np.dot(weights, rows)
        self.folds += folds[:FOLDS]
        if self.kind == "c":
            self.total += float(ordered.sum(dtype=np.float64))
        else:
            self.total += float(folds[FOLDS:].sum(dtype=np.float64))
        self.row += _ROWS

    def _add_part(self, values: np.ndarray, ordered: np.ndarray) -> None:
        n_rows, rest = divmod(values.size, ROW)
        self.total += float(ordered.sum(dtype=np.float64))
        weights = row_weights_of(self.row, n_rows + 1)
        if n_rows:
            rows = values[: n_rows * ROW].reshape(n_rows, ROW)
            self.squares += float(_vecdot(rows, rows).sum(dtype=np.float64))
            self.folds += np.dot(weights[:, :n_rows].astype(self.work), rows)
        if rest:
            last = values[n_rows * ROW :]
            self.squares += float(np.dot(last, last))
            self.folds[:, :rest] += weights[:, n_rows:] * last
        self.row += n_rows + 1

    def need_care(self) -> bool:
        if self.work == np.float32:
            small = self.squares < self.n * _SMALL_SQUARE and (self.max != 0 or self.min != 0)
        else:
            small = self.squares == 0.0 and (self.max != 0 or self.min != 0)
        return small or not math.isfinite(self.squares) or not math.isfinite(self.total)

    def report(self, found: Statistics) -> None:
        self.report_range(found)
        found.nan_count = found.inf_count = 0
        if self.kind != "b":
            found.mean, found.norm = self.total / self.n, math.sqrt(self.squares)
        found.sketch = finish_sketch(self.folds)

    def report_range(self, found: Statistics) -> None:
        convert = {"b": bool, "i": int, "u": int}.get(self.kind, float)
        found.max, found.min, found.zero_count = convert(self.max), convert(self.min), self.n_zero


class _Careful:
    """The same totals in float64, around NaN and infinity, and scaled so that a square neither overflows nor vanishes."""

    def __init__(self, quick: _Totals):
        self.quick = quick
        self.row = self.n_nan = self.n_inf = 0
        self.total = self.squares = 0.0
        self.finite_total = 0.0
        largest = max(abs(float(quick.max)), abs(float(quick.min)))
        self.scale = 2.0 ** -math.frexp(largest)[1] if 0.0 < largest < math.inf else 1.0
        self.folds = np.zeros((FOLDS, ROW))

    def add(self, block: np.ndarray) -> None:
        values = self.quick.values(block).astype(np.float64)
        ordered = np.abs(block).astype(np.float64) if self.quick.kind == "c" else values
        self.n_nan += np.count_nonzero(np.isnan(ordered))
        self.n_inf += np.count_nonzero(np.isinf(ordered))
        self.total += float(ordered.sum())
        scaled = ordered * self.scale
        self.squares += float(np.dot(scaled, scaled))
        values[~np.isfinite(values)] = 0.0
        n_rows = -(-values.size // ROW)
        rows = np.zeros((n_rows, ROW))
        rows.reshape(-1)[: values.size] = values
        self.folds += np.dot(row_weights_of(self.row, n_rows), rows)
        self.row += n_rows

    def report(self, found: Statistics) -> None:
        self.quick.report_range(found)
        found.nan_count, found.inf_count = self.n_nan, self.n_inf
        if self.quick.kind != "b":
            found.mean = self.total / self.quick.n
            found.norm = math.sqrt(self.squares) / self.scale if self.squares == self.squares else math.nan
        found.sketch = finish_sketch(self.folds)


def row_weights_of(first: int, n_rows: int) -> np.ndarray:
    return _row_table(first + n_rows)[:, first : first + n_rows]


def _row_table(n_rows: int) -> np.ndarray:
    """The weights of at least n_rows rows; grows by doubling and is shared."""
    global _TABLE
    table = _TABLE
    if table.shape[1] < n_rows:
        table = _TABLE = row_weights(max(n_rows, 2 * table.shape[1]))
    return table


def _block_weights(first: int, dtype: np.dtype) -> np.ndarray:
    """The weights of a whole block: the folds, then ones for two halves of its rows, whose sums stay exact for longer."""
    key = first, dtype
    weights = _BLOCK_WEIGHTS.get(key)
    if weights is None:
        weights = np.zeros((FOLDS + 2, _ROWS), dtype)
        weights[:FOLDS] = row_weights_of(first, _ROWS)
        weights[FOLDS, : _ROWS // 2] = weights[FOLDS + 1, _ROWS // 2 :] = 1
        _BLOCK_WEIGHTS[key] = weights
    return weights


def _einsum_vecdot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", a, b)


_vecdot = getattr(np, "vecdot", _einsum_vecdot)  # numpy 2
_ROWS = BLOCK // ROW
_HIGH_HALF = 1 if np.little_endian else 0
_SMALL_SQUARE = 1e-31  # a mean square below it may have lost squares that float32 cannot hold
_TABLE = row_weights(_ROWS)
_BLOCK_WEIGHTS: dict[tuple[int, np.dtype], np.ndarray] = {}
