"""Facts about a tensor that follow from its shape and strides alone."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["is_dense"]


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill one span, none twice and none left out, in whatever order the dimensions lie."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
