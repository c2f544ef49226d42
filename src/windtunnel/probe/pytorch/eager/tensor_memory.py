"""From any tensor a program may hold to memory that can be read: as a numpy array, or as bytes in C order.

    DTensor ──> its local shard     result of an asynchronous collective ──> the result, waited for
    inside vmap, grad, jvp ──> the value that is wrapped     zeros that autograd never filled in ──> zeros
    sparse, quantised, nested, fake, meta, inside functionalize ──> None

    plain tensor ──> host_array: numpy over the same memory     ──> host_bytes: contiguous, on the host, a memoryview

Not by `Tensor.numpy()`: from then on it forbids resizing the storage, which breaks FSDP and every program that frees
and refills its storages; it is also an operation that modes and function transforms see.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

from windtunnel.probe.pytorch.eager.transforms import is_wrapped, outside, unwrapped

__all__ = ["PLAIN_TYPES", "host_array", "host_bytes", "is_in_storage", "plain_tensor", "tensor_with_bytes"]

PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
_NO_DISPATCH = torch.Tensor.__torch_dispatch__


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor that holds the bytes, or None if there is none. Call it with torch functions disabled."""
    for _ in range(4):  # a shard may be the result of a collective
        inner = _inner(tensor)
        if inner is tensor:
            break
        if not isinstance(inner, torch.Tensor):
            return None
        tensor = inner
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return None
    if torch._is_functional_tensor(tensor):
        return None
    if (
        tensor.is_meta or tensor.untyped_storage().device.type == "meta"
    ):  # fake tensors say "cpu" of themselves
        return None
    if tensor._is_zerotensor():  # forward mode and vmap make them: a shape without memory
        with outside(), torch._C._DisableTorchDispatch(), torch.no_grad():
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor


def is_in_storage(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor's elements lie in its storage: a storage can be made smaller under its tensors."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return end <= tensor.untyped_storage().nbytes()


def _inner(tensor: torch.Tensor) -> torch.Tensor | None:
    if is_wrapped(tensor):
        return unwrapped(tensor)
    kind = type(tensor)
    if kind in PLAIN_TYPES:
        return tensor
    if kind.__torch_dispatch__ == _NO_DISPATCH:  # a subclass that only changes what functions do
        return tensor
    if hasattr(tensor, "_local_tensor"):  # DTensor; its to_local() would be recorded by autograd
        return tensor._local_tensor
    if hasattr(tensor, "trigger_wait"):  # AsyncCollectiveTensor: the memory is not filled before
        collective: Any = tensor
        collective.trigger_wait()
        return collective.elem
    return None if hasattr(kind, "__tensor_flatten__") else tensor


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
    memory: Any = (ctypes.c_char * (last + size)).from_address(tensor.data_ptr())
    return np.ndarray(shape, dtype, memory, 0, strides)


def tensor_with_bytes(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor whose bytes can be saved (of a distributed tensor the local part); None if there is none."""
    with torch._C.DisableTorchFunction():
        plain = plain_tensor(tensor)
        if plain is None or not plain.is_cpu or plain.numel() == 0:
            return plain
        return plain if plain.data_ptr() and is_in_storage(plain) else None


def host_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes as they are now: of live memory for contiguous tensors on the CPU, which must be held."""
    with outside(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
        plain = tensor.detach()
        if plain.device.type != "cpu":
            plain = plain.to("cpu")
        plain = plain.resolve_conj().resolve_neg().contiguous()
        if plain.numel() == 0:
            return memoryview(b"")
        data: Any = np.asarray(_Held(plain))
        return memoryview(data)


class _Held:
    """The bytes of a tensor for numpy, which holds this object, and with it the tensor, while it uses them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        n_bytes = tensor.numel() * tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "shape": (n_bytes,),
            "typestr": "|u1",
            "data": (tensor.data_ptr(), True),
        }
