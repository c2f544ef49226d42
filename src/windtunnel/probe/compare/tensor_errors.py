"""Compare two tensors element by element: distance, largest error, share of close elements.

    files of both sides ──> blocks in float64 ──> running totals ──> TensorNumbers

One pair is in memory at a time. Non-finite values agree when they are the same kind at the same place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["TensorNumbers", "compare_arrays"]

_BLOCK = 1 << 18  # elements


@dataclass(frozen=True, slots=True)
class TensorNumbers:
    """B is the reference of relative errors, as msProbe's bench is."""

    relative_l2: (
        float  # norm of the difference relative to the larger norm; infinite if non-finite values differ
    )
    cosine: float
    euclidean: float
    max_abs: float
    max_relative: float
    one_thousandth: float  # share of elements whose relative error is below 0.001
    five_thousandths: float
    n_nonfinite_differ: int


def compare_arrays(a: np.ndarray, b: np.ndarray) -> TensorNumbers | None:
    """None for tensors of different sizes and for empty ones."""
    if a.size != b.size or not a.size:
        return None
    x, y = np.ravel(a), np.ravel(b)
    sums = np.zeros(4)  # squares of a, of b, of the difference; a times b
    max_abs = max_relative = 0.0
    n_finite = n_within_1 = n_within_5 = n_nonfinite_differ = 0
    for at in range(0, x.size, _BLOCK):
        p, q = _wide(x[at : at + _BLOCK]), _wide(y[at : at + _BLOCK])
        finite = np.isfinite(p) & np.isfinite(q)
        if not finite.all():
            same = (p == q) | (np.isnan(p) & np.isnan(q))
            n_nonfinite_differ += int(np.count_nonzero(~finite & ~same))
            p, q = p[finite], q[finite]
        if not p.size:
            continue
        off = np.abs(p - q)
        size = np.abs(q)
        relative = np.divide(off, size, out=np.where(off > 0, 1.0, 0.0), where=size > 0)
        sums += [_dot(p, p), _dot(q, q), _dot(off, off), _dot(p, q)]
        max_abs, max_relative = max(max_abs, float(off.max())), max(max_relative, float(relative.max()))
        n_finite += p.size
        n_within_1 += int(np.count_nonzero(relative < 1e-3))
        n_within_5 += int(np.count_nonzero(relative < 5e-3))
    larger = math.sqrt(max(sums[0], sums[1]))
    euclidean = math.sqrt(sums[2])
    both = math.sqrt(sums[0]) * math.sqrt(sums[1])
    return TensorNumbers(
        relative_l2=math.inf if n_nonfinite_differ else euclidean / larger if larger else 0.0,
        cosine=float(sums[3]) / both if both else 1.0 if larger == 0 else 0.0,
        euclidean=euclidean,
        max_abs=max_abs,
        max_relative=max_relative,
        one_thousandth=n_within_1 / n_finite if n_finite else 1.0,
        five_thousandths=n_within_5 / n_finite if n_finite else 1.0,
        n_nonfinite_differ=n_nonfinite_differ,
    )


def _wide(block: np.ndarray) -> np.ndarray:
    if block.dtype.kind == "c":
        return np.ascontiguousarray(block).view(block.real.dtype).astype(np.float64)
    return block.astype(np.float64)


def _dot(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.dot(x, np.conj(y)))
