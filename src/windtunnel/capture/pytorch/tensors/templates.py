"""Create tensors without bytes cheaply, and get a callback when their storage is freed.

    TensorTemplate(shape, strides, dtype) ──> instantiate(owner) ──> Tensor on the simulated backend
    torch drops the last reference to the storage ──> DLPack deleter ──> owner is released (its __del__ runs)

DLPack is the only public way to give a storage a deleter from Python. The deleter is numpy's own: a C function that
takes the interpreter lock, frees the struct and releases one Python object, in any thread and even while an exception
is pending (a Python callback would swallow the exception). The storage itself has no Python object, which matters too:
autograd accumulates gradients in place only if nothing else holds the storage, so a wrapper would report more memory
than the device uses.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import torch

__all__ = ["TensorTemplate", "storage_id"]

# The C++ storage's address: an identity that creates no Python object. Torch's stubs do not have it.
storage_id = torch._C._storage_id  # type: ignore[attr-defined]

_FIRST_ADDRESS = 1 << 60  # never dereferenced; no real allocation can have such an address
_EXTENSION_DEVICE = 12  # DLPack's kDLExtDev, which torch reads as PrivateUse1
_CODES = {
    torch.int8: (0, 8), torch.int16: (0, 16), torch.int32: (0, 32), torch.int64: (0, 64),
    torch.uint8: (1, 8), torch.uint16: (1, 16), torch.uint32: (1, 32), torch.uint64: (1, 64),
    torch.float16: (2, 16), torch.float32: (2, 32), torch.float64: (2, 64),
    torch.bfloat16: (4, 16), torch.complex32: (5, 32), torch.complex64: (5, 64), torch.complex128: (5, 128),
    torch.bool: (6, 8), torch.float8_e4m3fn: (10, 8), torch.float8_e4m3fnuz: (11, 8),
    torch.float8_e5m2: (12, 8), torch.float8_e5m2fnuz: (13, 8), torch.float8_e8m0fnu: (14, 8),
}  # fmt: skip

# struct DLManagedTensor: data, device, ndim|code|bits|lanes, shape, strides, byte_offset, manager_ctx, deleter
_pack = struct.Struct("=QiiiBBHQQQQQ").pack
_SIZE = 64

_python = ctypes.pythonapi
_malloc = _python.PyMem_Malloc
_malloc.restype, _malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
_increase_references = _python.Py_IncRef
_increase_references.restype, _increase_references.argtypes = None, (ctypes.py_object,)
_new_capsule = _python.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = (
    ctypes.py_object,
    (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
)
_capsule_pointer = _python.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_from_dlpack = torch._C._from_dlpack
_move = ctypes.memmove


def _numpy_deleter() -> int:
    """Address of numpy's C function that releases an exported array."""
    capsule = np.zeros(1, np.uint8).__dlpack__()
    start = _capsule_pointer(capsule, b"dltensor")
    return ctypes.c_uint64.from_address(start + _SIZE - 8).value


_DELETER = _numpy_deleter()
_next_address = _FIRST_ADDRESS


class TensorTemplate:
    """All tensors of one shape, strides and dtype."""

    __slots__ = ("bits", "code", "n_bytes", "n_dims", "shape", "span", "strides")

    def __init__(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, n_bytes: int
    ) -> None:
        self.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.strides = (ctypes.c_int64 * max(len(shape), 1))(*strides)
        self.n_dims = len(shape)
        self.code, self.bits = _CODES[dtype]
        self.n_bytes = n_bytes
        self.span = (n_bytes + 1023) // 512 * 512

    def instantiate(self, owner: Any) -> torch.Tensor:
        """A new tensor; `owner` is kept alive until the tensor's storage is freed."""
        global _next_address
        address = _next_address
        _next_address = address + self.span
        record = _pack(
            address, _EXTENSION_DEVICE, 0, self.n_dims, self.code, self.bits, 1, ctypes.addressof(self.shape),
            ctypes.addressof(self.strides), 0, id(owner), _DELETER,
        )  # fmt: skip
        start = _malloc(_SIZE)
        _move(start, record, _SIZE)
        _increase_references(owner)
        return _from_dlpack(_new_capsule(start, b"dltensor", None))
