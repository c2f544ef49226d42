"""The bytes of a tensor in C order in host memory, without a copy where that is possible.

    tensor ──> contiguous, on the host ──> memoryview (None where a tensor has no plain bytes)
"""

from __future__ import annotations

import torch

__all__ = ["host_bytes"]


def host_bytes(tensor: torch.Tensor) -> memoryview | None:
    """Return the bytes as they are now; a view of live memory for contiguous tensors on the CPU."""
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
        return memoryview(plain.reshape(-1).view(torch.uint8).numpy())
