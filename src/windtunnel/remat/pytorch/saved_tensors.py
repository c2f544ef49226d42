"""The tensors autograd saves for backward: the two hooks, and the release of a saved tensor.

    pack(tensor) ──> Handle (may be dropped) | Kept (left alone)      unpack ──> the tensor, recomputed if needed

Autograd does not check for in-place changes of saved tensors while hooks are installed, so the check is made here.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch

from windtunnel import torch_custom_saves
from windtunnel.remat.pytorch.host import LiveHost
from windtunnel.remat.pytorch.recipe import LiveValue, rebuild, value_of

__all__ = ["SavedTensors"]


class Kept:
    """A saved tensor that is never dropped."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.version = tensor._version


class Handle:
    """A saved tensor whose bytes may be dropped."""

    __slots__ = ("dtype", "offset", "saved", "shape", "strides", "value", "version")

    def __init__(self, saved: SavedTensors, value: LiveValue, tensor: torch.Tensor) -> None:
        self.saved = saved
        self.value = value
        self.version = tensor._version
        self.dtype = tensor.dtype
        self.shape = tensor.shape
        self.strides = tensor.stride()
        self.offset = tensor.storage_offset()

    def __del__(self) -> None:
        self.saved.release(self)


class SavedTensors:
    def __init__(self, host: LiveHost, attend: Callable[[], None], wake_if_near: Callable[[], None]) -> None:
        self._host = host
        self._attend = attend
        self._wake_if_near = wake_if_near
        self._released: deque[tuple[LiveValue, int]] = deque()
        self.has_packed = False  # autograd has saved something since this was last reset

    def pack(self, tensor: torch.Tensor) -> Any:
        is_custom = torch_custom_saves.is_custom(tensor)
        if not (tensor.is_leaf and tensor.requires_grad):
            # A node that saves its own result passes the result itself, which would keep its node alive for ever. A
            # tensor that needs no gradient is the program's own, so dropping it would free nothing. A detached tensor
            # is ours alone, and shares the version counter.
            tensor = tensor.detach()
        self.has_packed = True
        if not self._host.is_recording:
            self._wake_if_near()
            self._attend()
            return Kept(tensor)
        self._attend()
        if (
            type(tensor) is not torch.Tensor
            or tensor.device != self._host.device
            or tensor.layout is not torch.strided
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            return Kept(tensor)
        storage: Any = tensor.untyped_storage()  # it gets an attribute of ours
        value = value_of(storage)
        if not isinstance(value, LiveValue):
            return Kept(tensor)
        with self._host.lock:
            if is_custom:
                # A custom function may have written into it with kernels that torch does not see: it is kept, and
                # nothing that was computed from it earlier is recomputed from this memory.
                self._host.overwritten(tensor)
                return Kept(tensor)
            value.storage = storage
            storage._windtunnel = ref(value)
            handle = Handle(self, value, tensor)
            value.slots[id(handle)] = tensor
            self._host.engine.save(value)
        return handle

    def unpack(self, packed: Any) -> torch.Tensor:
        if type(packed) is Kept:
            _check_version(packed.tensor, packed.version)
            return packed.tensor
        value = packed.value
        with self._host.lock:
            tensor = value.overwritten.get(id(packed))
            if tensor is not None:
                _check_version(tensor, packed.version)
                return tensor
            tensor = value.slots.pop(id(packed), None)
            if tensor is not None:
                _check_version(tensor, packed.version)
            self._host.engine.fetch(value)
            if tensor is None:
                tensor = rebuild(value.here(), packed, self._host.device)
            self.unsave_released()
        return tensor

    def release(self, handle: Handle) -> None:
        """Autograd no longer needs a saved tensor. May be called at any point, even inside our own code."""
        try:
            self._released.append((handle.value, id(handle)))
            # Inside our own code (the collector may run at any time) it is deferred: candidates must not change meanwhile.
            if not self._host.lock._is_owned() and self._host.lock.acquire(blocking=False):
                try:
                    self.unsave_released()
                finally:
                    self._host.lock.release()
        except Exception:  # at interpreter exit anything may be gone already
            if not sys.is_finalizing():
                raise

    def unsave_released(self) -> None:
        while self._released:
            value, key = self._released.popleft()
            value.slots.pop(key, None)
            value.overwritten.pop(key, None)
            self._host.engine.unsave(value)


def _check_version(tensor: torch.Tensor, expected: int) -> None:
    """The check that torch skips when hooks are installed."""
    if tensor._version != expected:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation:"
            f" [{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {expected}"
            " instead. Hint: enable anomaly detection to find the operation that failed to compute its gradient,"
            " with torch.autograd.set_detect_anomaly(True)."
        )
