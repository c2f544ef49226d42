"""Bytes at the peak by source line, read from the details in a page.

    page document, rank ──> columns of its allocations ──> lines_at_peak ──> (line, role) -> bytes

The page may come from anyone: a wrong column gives no answer, never an error.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections import defaultdict
from typing import Any

import numpy as np

__all__ = ["lines_at_peak", "read_column"]

_TYPES = {"u1": "<u1", "u2": "<u2", "u4": "<u4", "i4": "<i4", "f8": "<f8"}
_MOST_NUMBERS = 4_000_000


def lines_at_peak(page: dict[str, Any], rank: int, peak_bytes: int) -> dict[tuple[str, str], int] | None:
    """Return live bytes at the peak by (source line, role); None unless they add up to `peak_bytes`."""
    try:
        detail = page["details"][str(rank)]
        row = int(detail["peak_row"])
        found = _live_lines(detail, row)
        for role, column in zip(detail["roles"], (detail["rest"] or {}).get("bytes", ()), strict=False):
            at = int(np.searchsorted(read_column(detail["rest"]["row"]), row, side="right")) - 1
            if at >= 0 and (n_bytes := int(read_column(column)[at])):
                found["", str(role)] += n_bytes
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    missing = peak_bytes - sum(found.values())
    if missing < 0:
        return None  # the page is of another run than the report
    if missing:
        found["", "unnamed"] += missing
    return dict(found)


def _live_lines(detail: dict[str, Any], row: int) -> defaultdict[tuple[str, str], int]:
    allocations, whats = detail["allocations"], detail["whats"]
    born = read_column(allocations["born"]).astype(np.int64)
    freed = born + read_column(allocations["life"]).astype(np.int64)
    alive = np.flatnonzero((born <= row) & (freed > row))
    what = read_column(allocations["what"])[alive]
    sizes = read_column(detail["sizes"])[read_column(allocations["size"])[alive]]
    where, role = read_column(whats["where"]), read_column(whats["role"])
    strings, roles = detail["strings"], detail["roles"]
    found: defaultdict[tuple[str, str], int] = defaultdict(int)
    for each, n_bytes in zip(what.tolist(), sizes.tolist(), strict=True):
        found[str(strings[where[each]]), str(roles[role[each]])] += int(n_bytes)
    return found


def read_column(column: dict[str, Any]) -> np.ndarray:
    """Read a column written by `columns.pack`; raises ValueError if it is not one."""
    n, dtype = column["n"], np.dtype(_TYPES[column["type"]])
    if not isinstance(n, int) or not 0 <= n <= _MOST_NUMBERS:
        raise ValueError(f"a column of {n} numbers")
    size = n * dtype.itemsize
    try:
        stream = zlib.decompressobj()
        planes = stream.decompress(base64.b64decode(column["data"], validate=True), size + 1)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from None
    if len(planes) != size:
        raise ValueError(f"{len(planes)} bytes, not {size}")
    raw = np.frombuffer(planes, np.uint8).reshape(dtype.itemsize, n).T
    values = np.ascontiguousarray(raw).view(dtype).reshape(n)
    return np.add.accumulate(values, dtype=dtype) if column["delta"] else values
