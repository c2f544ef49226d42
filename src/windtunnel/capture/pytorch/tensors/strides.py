"""Strides torch gives to a new tensor."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

__all__ = ["contiguous_strides", "preserved_strides", "strides_for"]

Tensor = torch.Tensor
_empty_strided = torch.empty_strided  # torch's own, before constructors are replaced


def contiguous_strides(shape: Any) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(tuple(shape)):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def strides_for(shape: tuple[int, ...], memory_format: torch.memory_format | None) -> tuple[int, ...]:
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return contiguous_strides(shape)
    order = (0, 2, 3, 1) if memory_format is torch.channels_last else (0, 2, 3, 4, 1)
    permuted = contiguous_strides([shape[i] for i in order])
    strides = [0] * len(shape)
    for position, i in enumerate(order):
        strides[i] = permuted[position]
    return tuple(strides)


def preserved_strides(source: Tensor) -> tuple[int, ...]:
    """Strides of `empty_like(source)`: kept when the tensor is dense, contiguous otherwise."""
    return _preserved(tuple(source.shape), tuple(source.stride()))


@cache
def _preserved(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(torch.empty_like(_empty_strided(shape, strides, device="meta")).stride())
