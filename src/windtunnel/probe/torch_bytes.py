"""The bytes of a tensor in C order in host memory, without a copy where that is possible.

tensor ──> contiguous, on the host ──> memoryview (None where a tensor has no plain bytes)
"""

from __future__ import annotations

import numpy
import torch

__all__ = ["host_bytes"]


def host_bytes(tensor: torch.Tensor) -> memoryview | None:
    """Return the bytes as they are now: of live memory for contiguous tensors on the CPU, which must be held."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
        local = getattr(tensor, "_local_tensor", None)
        plain = (tensor if local is None else local).detach()
        if plain.layout is not torch.strided or plain.is_quantized or plain.device.type == "meta":
            return None
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
