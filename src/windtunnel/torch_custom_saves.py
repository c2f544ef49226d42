"""Find out which saved tensors come from a custom autograd function, in every version of torch.

    forward(ctx, x): ctx.save_for_backward(x, y) ──> noted ──> forward returns ──> torch packs x, y ──> is_custom(x): True

A pack hook does not know who saves. Its caller differs between versions (`Function.apply` was Python and became C), but
in every version the function passes its tensors to `ctx.save_for_backward`, and torch clears `ctx.to_save` when forward
has ended and packs them before any other code runs.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import ref

import torch
from torch.autograd.function import FunctionCtx

__all__ = ["is_custom", "unwatch", "watch"]

_plain_save = FunctionCtx.save_for_backward


class _Saving:
    """One call of save_for_backward whose tensors torch has not packed yet."""

    __slots__ = ("context", "tensors")

    def __init__(self, context: Any, tensors: list[torch.Tensor]) -> None:
        self.context = ref(context)
        self.tensors = [ref(tensor) for tensor in tensors]

    def is_running(self) -> bool:
        """Whether forward has not ended yet: what is packed now is saved by other operators."""
        context = self.context()
        return context is not None and context.to_save is not None

    def take(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is one of them. Without gradients the context is gone, and nothing will be packed."""
        if self.context() is None:
            return False
        for position, reference in enumerate(self.tensors):
            if _is_same(reference(), tensor):
                del self.tensors[position]
                return True
        return False


class _Thread(threading.local):
    def __init__(self) -> None:
        self.saving: list[_Saving] = []  # one per nested function


_thread = _Thread()


def watch() -> None:
    """Note what custom functions save from now on."""
    FunctionCtx.save_for_backward = _save_for_backward  # type: ignore[method-assign]


def unwatch() -> None:
    if FunctionCtx.save_for_backward is _save_for_backward:
        FunctionCtx.save_for_backward = _plain_save  # type: ignore[method-assign]


def is_custom(tensor: torch.Tensor) -> bool:
    """Whether a custom function is saving this tensor now. Each pack hook must ask exactly once."""
    saving = _thread.saving
    while saving and not saving[-1].is_running():
        if saving[-1].take(tensor):
            return True
        saving.pop()  # all packed, or hidden from us by the program's own hooks
    return False


def _save_for_backward(self: Any, *tensors: Any) -> None:
    _plain_save(self, *tensors)
    saving = _thread.saving
    while saving and (not saving[-1].is_running() or saving[-1].context() is self):
        saving.pop()
    wanted = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    if wanted:
        saving.append(_Saving(self, wanted))


def _is_same(saved: torch.Tensor | None, packed: torch.Tensor) -> bool:
    if saved is None or saved is packed:
        return saved is packed
    # An input that is returned unchanged reaches the hook as a view.
    return packed._is_view() and packed._base is (saved._base if saved._is_view() else saved)
