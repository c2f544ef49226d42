"""Hand-made tensors for tests of costs."""

from __future__ import annotations

from windtunnel.events.model import TensorSpec


def spec(*shape: int, dtype: str = "bfloat16", strides: tuple[int, ...] | None = None) -> TensorSpec:
    """Contiguous unless strides are given."""
    if strides is None:
        strides, step = (), 1
        for size in reversed(shape):
            strides, step = (step, *strides), step * size
    return TensorSpec(shape, strides, dtype)
