"""Fewer points of the same picture: the highest and the lowest of every stretch.

values at many moments ──> outline ──> indices of those that keep the shape
"""

from __future__ import annotations

import numpy as np

__all__ = ["outline"]


def outline(values: np.ndarray, n_points: int, keep: np.ndarray) -> np.ndarray:
    """Indices of about `n_points` moments: both ends, all of `keep`, the extremes of each stretch."""
    n = len(values)
    if n <= n_points:
        return np.arange(n)
    starts = np.unique(np.linspace(0, n, max(1, n_points // 2), endpoint=False).astype(np.int64))
    stretch = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, n)))
    # Sorted by stretch, then by value: the first of a stretch is its lowest, the last its highest.
    order = np.lexsort((values, stretch))
    ends = np.append(starts[1:], n) - 1
    return np.unique(np.concatenate([[0, n - 1], keep, order[starts], order[ends]]))
