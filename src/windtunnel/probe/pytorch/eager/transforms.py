"""Tensors inside the transforms of torch.func: the whole batch behind one sample, the value behind a tracked one.

    grad, jvp: GradTrackingTensor ──> the tensor it tracks
    vmap:      BatchedTensor of one sample ──> all samples, the batch in front
    functionalize ──> None: its writes may still be pending

While a transform runs, torch wraps the result of every operation, also of ours: `outside` lets us work as if none ran.
"""

from __future__ import annotations

import torch

__all__ = ["is_inside", "is_wrapped", "kind_of_wrapper", "outside", "unwrapped"]

outside = torch._C._DisableFuncTorch  # a context: no transform sees what is called within
is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def is_inside() -> bool:
    """Whether a transform runs now, in this thread."""
    return torch._C._functorch.maybe_current_level() is not None


def kind_of_wrapper(tensor: torch.Tensor) -> str | None:
    """The name msProbe has for a wrapper; None for a tensor that is not wrapped."""
    if not is_wrapped(tensor):
        return None
    if torch._C._functorch.is_batchedtensor(tensor):
        return "BatchedTensor"
    return "GradTrackingTensor" if torch._C._functorch.is_gradtrackingtensor(tensor) else "torch.Tensor"


def unwrapped(tensor: torch.Tensor) -> torch.Tensor | None:
    """The value behind all wrappers, with the dimensions that vmap hides in front; None if it cannot be had."""
    hidden: list[int] = []  # where each vmap has its batch, the innermost first
    while is_wrapped(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            hidden.append(torch._C._functorch.maybe_get_bdim(tensor))
        elif not torch._C._functorch.is_gradtrackingtensor(tensor):
            return None
        tensor = torch._C._functorch.get_unwrapped(tensor)
    rest = list(range(tensor.dim()))
    order = [rest.pop(dimension) for dimension in reversed(hidden)] + rest
    if order == sorted(order):
        return tensor
    with outside(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
        return tensor.permute(order)
