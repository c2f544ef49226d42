"""The statistics of one tensor in a dump: range, mean, norm, non-finite values, sketch and checksum.

    memory or array ──> one fused pass, else numpy ──> Statistics ──> JSON

Sums are kept in float64 over blocks that are summed in float32 (float64 for float64 and integers). A total that is not
finite, or so small that squares underflowed, is recomputed carefully, so a norm overflows only if float64 does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from windtunnel.probe.files.checksum import crc32, crc_text, xor_text, xor_words
from windtunnel.probe.measure.array_totals import (
    BLOCK,
    CarefulTotals,
    QuickTotals,
    c_order_blocks,
    needs_care,
)

try:
    from windtunnel.probe.measure import fused
except ImportError:  # no compiler where windtunnel was installed
    fused = None  # type: ignore[assignment]

__all__ = [
    "Statistics",
    "array_statistics",
    "array_xor",
    "in_own_type",
    "memory_statistics",
    "needs_care",
    "statistics_json",
]


@dataclass(slots=True)
class Statistics:
    """None where a value has no meaning: an empty tensor has no maximum."""

    max: float | int | bool | None = None
    min: float | int | bool | None = None
    mean: float | None = None
    norm: float | None = None
    nan_count: int | None = None
    inf_count: int | None = None
    zero_count: int | None = None
    sketch: tuple[float, ...] | None = None  # of the finite values; the others count as zero
    crc: str | None = None


def memory_statistics(
    address: int, n_bytes: int, code: str, shape: tuple[int, ...], strides: tuple[int, ...], crc: bool
) -> Statistics | None:
    """Measure numbers in memory; strides count elements. None: use `array_statistics` instead.

    The caller guarantees n_bytes at the address, or the whole tensor with -1; a tensor that extends further raises
    ValueError. `code` is the type code of Python's struct module, or "E" for bfloat16.
    """
    if fused is None:
        return None
    found = fused.measure(address, n_bytes, code, shape, strides, crc32 if crc else None)
    return None if found is None else Statistics(*found)


def array_statistics(array: np.ndarray, *, crc: bool = False, bfloat16: bool = False) -> Statistics:
    """Measure an array of numbers or booleans, of any strides; `bfloat16` says that the 16-bit integers are bfloat16.

    Maximum and minimum are NaN if any element is. Complex numbers are measured by their size, and their sketch is that
    of real and imaginary parts in turn. Other arrays (text, objects) have no statistics.
    """
    dtype = array.dtype
    if array.size == 0 or dtype.kind not in "fiubc" or not dtype.isnative or dtype.itemsize > 16:
        return Statistics(crc=crc_text(0) if crc and array.size == 0 else None)
    code = "E" if bfloat16 else _CODES.get(dtype.str[1:])
    steps = array.strides
    if fused is not None and code is not None and not any(step % dtype.itemsize for step in steps):
        address = array.__array_interface__["data"][0]
        strides = tuple(step // dtype.itemsize for step in steps)
        found = memory_statistics(address, -1, code, array.shape, strides, crc)
        if found is not None:
            return found
    with np.errstate(all="ignore"):
        return _numpy_statistics(array, crc, bfloat16)


def array_xor(array: np.ndarray) -> Statistics:
    """Only the xor of the array's 64-bit words: summary mode "xor"."""
    word = 0
    for block in c_order_blocks(array, BLOCK):
        word = xor_words(block, word)
    return Statistics(crc=xor_text(word))


def in_own_type(found: Statistics, type_name: str) -> Statistics:
    """The same with mean and norm as the tensor's own type holds them: precision "low".

    In float16 a norm above 65504 is infinite. Integers and 8-bit floats cannot hold a mean, and keep the exact figures.
    """
    kind = _OWN_TYPES.get(type_name.rpartition(".")[2].lower())
    if kind is None or found.mean is None or found.norm is None:
        return found
    with np.errstate(over="ignore"):
        figures = np.array([found.mean, found.norm]).astype(kind or np.float32)
    if kind == _BFLOAT16:
        figures = _to_bfloat16(figures)
    mean, norm = map(float, figures)
    return replace(found, mean=mean, norm=norm)


def statistics_json(found: Statistics, *, strict: bool = False) -> tuple[str, str]:
    """The statistics that msProbe writes, and those that it does not, as text to insert into a JSON object.

    `strict` writes "NaN" and "Infinity" as strings instead of the bare words, which are not valid JSON. Counts of zero
    are omitted.
    """
    number: Callable[[float | int | bool | None], str] = _strict_number if strict else _number
    if type(found.max) is type(found.mean) is float and _is_finite(found):  # the same text, sooner
        number = repr
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
        tail.append(f'"sketch": [{_sketch_text(found.sketch)}]')
    return head, ", ".join(tail)


def _numpy_statistics(array: np.ndarray, crc: bool, bfloat16: bool) -> Statistics:
    quick = QuickTotals(array.dtype, bfloat16)
    checksum = 0
    for block in c_order_blocks(array, BLOCK):
        if crc:
            checksum = crc32(block, checksum)
        quick.add(block)
    convert = {"b": bool, "i": int, "u": int}.get(quick.kind, float)
    found = Statistics(
        convert(quick.max), convert(quick.min), nan_count=0, inf_count=0, zero_count=quick.n_zero
    )
    if needs_care(quick.total, quick.squares, quick.n, quick.max, quick.min, quick.is_single):
        careful = CarefulTotals(array.dtype, bfloat16, max(abs(float(quick.max)), abs(float(quick.min))))
        for block in c_order_blocks(array, BLOCK):
            careful.add(block)
        found.nan_count, found.inf_count = careful.n_nan, careful.n_inf
        found.mean, found.norm, found.sketch = careful.total / quick.n, careful.norm, careful.sketch()
    else:
        found.mean, found.norm, found.sketch = quick.total / quick.n, math.sqrt(quick.squares), quick.sketch()
    if quick.kind == "b":
        found.mean = found.norm = None
    if crc:
        found.crc = crc_text(checksum)
    return found


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Floats of 32 bits to the nearest of which 16 are zero; ties to even."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isnan(values), values, rounded.astype(np.uint32).view(np.float32))


def _is_finite(found: Statistics) -> bool:
    mixed = (found.max - found.min) * 0.0 + (found.mean + found.norm) * 0.0  # type: ignore[operator]  # all are floats here
    return mixed == 0.0  # false for NaN, which is what zero times infinity is


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


def _python_text(sketch: tuple[float, ...]) -> str:
    return ", ".join([f"{number:.7e}" for number in sketch])


_BFLOAT16 = ""  # numpy has no such type
_OWN_TYPES = {
    "float16": "f2", "bfloat16": _BFLOAT16, "float32": "f4", "float64": "f8", "complex32": "f2", "complex64": "f4",
    "complex128": "f8",
}  # fmt: skip
_sketch_text = _python_text if fused is None else fused.text
_CODES = {
    "b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q",
    "f2": "e", "f4": "f", "f8": "d",
}  # fmt: skip
