"""Thin a curve but keep its shape: the highest and the lowest point of every stretch.

values at many moments ──> outline ──> indices of the points to keep
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

__all__ = ["outline"]


def outline(values: np.ndarray, n_points: int, keep: np.ndarray) -> np.ndarray:
    """Return the indices of about `n_points` points: both ends, all of `keep`, the extremes of each stretch."""
    n = len(values)
    if n <= n_points:
        return np.arange(n)
    edges = np.linspace(0, n, max(1, n_points // 2) + 1).astype(np.int64).tolist()
    extremes: list[int] = []
    for start, end in pairwise(edges):
        if end > start:
            stretch = values[start:end]
            extremes += (start + int(stretch.argmax()), start + int(stretch.argmin()))
    return np.unique(np.concatenate([[0, n - 1], keep, extremes]).astype(np.int64))
