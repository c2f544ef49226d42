"""Evict when an allocation of backward fails, and run the operator again.

    backward ──> operator ──> OutOfMemoryError ──> evict ──> the same operator again

Without a threshold nothing is evicted ahead of time, so backward's own operators must be able to wait for an eviction.
They run in C++; a dispatch mode sees them. While any mode is active autograd accumulates gradients out of place, which
costs memory and breaks code that relies on their identity: the nodes that accumulate into `.grad` run without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _python_dispatch as dispatch

from windtunnel.remat.pytorch.host import LiveHost

__all__ = ["BackwardRetry"]


class BackwardRetry(dispatch.TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, host: LiveHost) -> None:
        super().__init__()
        self._host = host

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as for the recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(hasattr(each, "__tensor_flatten__") for each in types):
            return NotImplemented  # a wrapper subclass: its inner operators come by here
        if not isinstance(func, torch._ops.OpOverload) or func.is_view:
            return func(*args, **kwargs)
        return self._host.with_retry(func, args, kwargs)

    @contextmanager
    def during(self, roots: Iterable[Any]) -> Iterator[None]:
        """A backward from these tensors, with retries."""
        hooks = [node.register_prehook(self._step_aside) for node in _accumulators(roots)]
        dispatch._push_mode(self)
        try:
            yield
        finally:
            dispatch._pop_mode()
            for hook in hooks:
                hook.remove()

    def _step_aside(self, gradients: Any) -> None:
        """Remove the mode for one node: autograd restores it afterwards, with the rest of the thread's state."""
        if dispatch._get_current_dispatch_mode() is self:
            dispatch._pop_mode()


def _accumulators(roots: Iterable[Any]) -> list[Any]:
    """The nodes that add a gradient to `.grad`, in the graph below these tensors or edges."""
    waiting = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots]
    seen: set[Any] = set()
    found = []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node)
        waiting += [following for following, _ in node.next_functions]
    return found
