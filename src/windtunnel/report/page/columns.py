"""Columns of numbers, packed for a page: small and exact.

    array ──> the narrowest type, differences, planes of bytes, deflate, base64 ──> {"type", "n", "delta", "data"}

templates/shell/columns.js reads them. A float64 holds every count of bytes below 2**53 exactly.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

__all__ = ["pack"]

_NARROWEST = ((np.uint8, "u1"), (np.uint16, "u2"), (np.uint32, "u4"), (np.int32, "i4"), (np.float64, "f8"))
_LEVEL = 6
_EXACT = 2**53  # a float64 represents every integer below it


def pack(values: Any, *, is_rising: bool = False) -> dict[str, Any]:
    """Pack a column of integers or floats; `is_rising`: store differences, which are smaller."""
    array = np.ascontiguousarray(values)
    if array.size and array.dtype.kind == "f":
        return _column(array.astype("<f8"), "f8", is_delta=False)
    dtype, name = _type_of(array)  # before the conversion to 64 bits, which would change larger numbers
    array = array.astype(np.int64)
    target = np.dtype(dtype).newbyteorder("<")
    if is_rising and len(array) > 1:
        steps = np.diff(array, prepend=0)
        # Integers wrap around in the reader as they do here, so that a decrease is exact. Floats do not.
        if name != "f8" or int(np.abs(steps).max()) < _EXACT:
            return _column(steps.astype(target), name, is_delta=True)
    return _column(array.astype(target), name, is_delta=False)


def _type_of(array: np.ndarray) -> tuple[type, str]:
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    if max(abs(low), abs(high)) >= _EXACT:
        raise ValueError(f"{max(abs(low), abs(high))} is too large to be exact in a page")
    for dtype, name in _NARROWEST[:-1]:
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return dtype, name
    return _NARROWEST[-1]


def _column(array: np.ndarray, name: str, is_delta: bool) -> dict[str, Any]:
    planes = array.view(np.uint8).reshape(len(array), -1).T if len(array) else array
    packed = zlib.compress(np.ascontiguousarray(planes).tobytes(), _LEVEL)
    return {
        "type": name,
        "n": len(array),
        "delta": is_delta,
        "data": base64.b64encode(packed).decode("ascii"),
    }
