"""From any tensor a program may hold to the plain one whose memory can be read.

DTensor ──> its local shard     result of an asynchronous collective ──> the result, waited for
inside vmap, grad, jvp ──> the value that is wrapped     zeros that autograd never filled in ──> zeros
sparse, quantised, nested, fake, meta, inside functionalize ──> None
"""

from __future__ import annotations

import torch

from windtunnel.probe.torch_transforms import is_wrapped, outside, unwrapped

__all__ = ["PLAIN_TYPES", "is_in_storage", "plain_tensor"]

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
        tensor.trigger_wait()
        return tensor.elem
    return None if hasattr(kind, "__tensor_flatten__") else tensor
