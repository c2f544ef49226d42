"""The bytes of a tensor in C order in host memory, without a copy where that is possible.

tensor ──> the plain one that holds its bytes, if any ──> contiguous, on the host ──> memoryview
"""

from __future__ import annotations

import numpy
import torch

from windtunnel.probe.torch_plain import is_in_storage, plain_tensor
from windtunnel.probe.torch_transforms import outside

__all__ = ["host_bytes", "tensor_with_bytes"]


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
        owner = _Held(plain)
        return memoryview(numpy.asarray(owner))


class _Held:
    """The bytes of a tensor for numpy, which holds this object, and with it the tensor, while it uses them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        n_bytes = tensor.numel() * tensor.element_size()
        # Not tensor.numpy(): that forbids the storage to be resized ever after, which FSDP does.
        self.__array_interface__ = {
            "version": 3,
            "shape": (n_bytes,),
            "typestr": "|u1",
            "data": (tensor.data_ptr(), True),
        }
