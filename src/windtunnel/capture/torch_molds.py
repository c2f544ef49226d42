"""Make tensors without bytes, cheaply, and hear of it when their storage dies.

    Mold(shape, strides, dtype) ──> cast() ──> Tensor on the simulated backend
    torch drops the last reference to the storage ──> its deleter ──> on_death(storage id)

DLPack is the one public way to give a storage a deleter from Python. It also leaves the storage without a Python
object, which matters: autograd accumulates gradients in place only when nothing else holds the storage, so a
wrapper that kept it alive would show more memory than the device takes. Casting from a used mold costs a
microsecond.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Mold", "on_death", "storage_id"]

storage_id = torch._C._storage_id  # the C++ storage's address: an identity that creates no Python object

# Set by torch_storage: called with what was passed to cast() when the storage dies, in whatever thread that is.
on_death: Callable[[Any], None] = lambda owner: None

_FIRST_ADDRESS = 1 << 60  # nobody dereferences these; no real allocation can be there
_EXTENSION_DEVICE = 12  # DLPack's kDLExtDev, which torch reads as PrivateUse1
_CODES = {
    torch.int8: (0, 8), torch.int16: (0, 16), torch.int32: (0, 32), torch.int64: (0, 64),
    torch.uint8: (1, 8), torch.uint16: (1, 16), torch.uint32: (1, 32), torch.uint64: (1, 64),
    torch.float16: (2, 16), torch.float32: (2, 32), torch.float64: (2, 64),
    torch.bfloat16: (4, 16), torch.complex32: (5, 32), torch.complex64: (5, 64), torch.complex128: (5, 128),
    torch.bool: (6, 8), torch.float8_e4m3fn: (10, 8), torch.float8_e4m3fnuz: (11, 8),
    torch.float8_e5m2: (12, 8), torch.float8_e5m2fnuz: (13, 8), torch.float8_e8m0fnu: (14, 8),
}  # fmt: skip


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_from_dlpack = torch._C._from_dlpack


class _Slot:
    """One managed tensor struct; serves one storage at a time, again and again."""

    __slots__ = ("address", "mold", "owner", "struct")


_slots: dict[int, _Slot] = {}
_next_address = _FIRST_ADDRESS


@_Deleter
def _deleter(address: int) -> None:
    slot = _slots[address]
    owner, slot.owner = slot.owner, None
    slot.mold.free.append(slot)
    on_death(owner)


class Mold:
    """All tensors of one shape, strides and dtype."""

    __slots__ = ("code", "free", "n_bytes", "shape", "strides")

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, n_bytes: int) -> None:
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(shape))(*strides)
        self.code = _CODES[dtype]
        self.n_bytes = n_bytes
        self.free: list[_Slot] = []

    def cast(self, owner: Any) -> torch.Tensor:
        """A new tensor; `owner` is handed to `on_death` when its storage dies."""
        slot = self.free.pop() if self.free else self._new_slot()
        slot.owner = owner
        return _from_dlpack(_new_capsule(slot.address, b"dltensor", None))

    def _new_slot(self) -> _Slot:
        global _next_address
        struct = _DLManagedTensor()
        tensor = struct.tensor
        tensor.data = _next_address
        _next_address += (self.n_bytes + 1023) // 512 * 512
        tensor.device_type, tensor.device_id = _EXTENSION_DEVICE, 0
        tensor.ndim = len(self.shape)
        tensor.code, tensor.bits = self.code
        tensor.lanes = 1
        tensor.shape, tensor.strides = self.shape, self.strides
        struct.deleter = _deleter
        slot = _Slot()
        slot.struct, slot.mold, slot.owner = struct, self, None
        slot.address = ctypes.addressof(struct)
        _slots[slot.address] = slot
        return slot
