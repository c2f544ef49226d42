"""From any tensor a program may hold to the plain one whose memory can be read.

DTensor ──> its local shard     result of an asynchronous collective ──> the result, waited for
sparse, quantised, nested, fake, meta, batched, wrapped by functorch ──> None
"""

from __future__ import annotations

import torch

__all__ = ["PLAIN_TYPES", "plain_tensor"]

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
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(tensor):
        return None
    if (
        tensor.is_meta or tensor.untyped_storage().device.type == "meta"
    ):  # fake tensors say "cpu" of themselves
        return None
    return tensor


def _inner(tensor: torch.Tensor) -> torch.Tensor | None:
    kind = type(tensor)
    if kind in PLAIN_TYPES:
        if torch._C._functorch.is_gradtrackingtensor(tensor):
            return torch._C._functorch.get_unwrapped(tensor)
        return tensor
    if kind.__torch_dispatch__ == _NO_DISPATCH:  # a subclass that only changes what functions do
        return tensor
    if hasattr(tensor, "_local_tensor"):  # DTensor; its to_local() would be recorded by autograd
        return tensor._local_tensor
    if hasattr(tensor, "trigger_wait"):  # AsyncCollectiveTensor: the memory is not filled before
        tensor.trigger_wait()
        return tensor.elem
    return None if hasattr(kind, "__tensor_flatten__") else tensor
