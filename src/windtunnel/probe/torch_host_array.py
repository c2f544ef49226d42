"""A tensor in host memory as a numpy array over the same memory, without torch taking notice.

    address, shape, strides ──> numpy.ndarray

`Tensor.numpy()` would do the same, but it forbids the storage to be resized ever after, which breaks FSDP and every
program that frees and refills its storages; it is also an operation that modes and function transforms see.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch

__all__ = ["host_array"]


def host_array(tensor: torch.Tensor, dtype: np.dtype | type | str) -> np.ndarray:
    """A view of the elements as numpy's `dtype`, which has as many bytes; hold the tensor while it is used.

    The tensor must be strided, in host memory, inside its storage, and neither empty nor lazily conjugated or negated.
    """
    dtype = np.dtype(dtype)
    size = tensor.element_size()
    if dtype.itemsize != size:
        raise ValueError(f"an element has {size} bytes, and {dtype} has {dtype.itemsize}")
    shape, strides = tuple(tensor.shape), tuple(step * size for step in tensor.stride())
    last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (last + size)).from_address(tensor.data_ptr())
    return np.ndarray(shape, dtype, memory, 0, strides)
