"""What autograd saves for backward, in our hands: the two hooks, and the end of a saved tensor.

    pack(tensor) ──> Handle (may be dropped) | Kept (left alone)      unpack ──> the tensor, computed again if need be

Autograd's own check for tensors changed in place is off while hooks are there, so it is made here.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from windtunnel import torch_custom_saves
from windtunnel.remat.torch_recipe import LiveValue, rebuild
from windtunnel.remat.torch_recorder import value_of

if TYPE_CHECKING:
    from windtunnel.remat.torch_runtime import Runtime

__all__ = ["SavedTensors"]


class Kept:
    """A saved tensor we leave alone."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.version = tensor._version


class Handle:
    """A saved tensor whose bytes we may drop."""

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
        self.saved.let_go(self)


class SavedTensors:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._released: deque[tuple[LiveValue, int]] = deque()
        self.has_packed = False  # autograd has saved something, since that was last set

    def pack(self, tensor: torch.Tensor) -> Any:
        is_custom = torch_custom_saves.is_custom(tensor)
        if not (tensor.is_leaf and tensor.requires_grad):
            # A node that saves its own result gives us the result itself: kept as it is, it would keep its node for
            # ever. And what needs no gradient comes as the program's own tensor: dropping that frees nothing. Detached
            # it is ours alone, and the version counter is shared.
            tensor = tensor.detach()
        self.has_packed = True
        if not self._runtime.is_recording:
            self._runtime.wake_if_near()
            self._runtime.attend()
            return Kept(tensor)
        self._runtime.attend()
        if (
            type(tensor) is not torch.Tensor
            or tensor.device != self._runtime.device
            or tensor.layout is not torch.strided
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            return Kept(tensor)
        storage = tensor.untyped_storage()
        value = value_of(storage)
        if not isinstance(value, LiveValue):
            return Kept(tensor)
        with self._runtime.lock:
            if is_custom:
                # A custom function may have written into it with kernels torch does not see: it stays, and what was
                # computed from it before is never computed again from this memory.
                self._runtime.overwritten(tensor)
                return Kept(tensor)
            value.storage = storage
            storage._windtunnel = ref(value)
            handle = Handle(self, value, tensor)
            value.slots[id(handle)] = tensor
            self._runtime.engine.save(value)
        return handle

    def unpack(self, packed: Any) -> torch.Tensor:
        if type(packed) is Kept:
            _check_version(packed.tensor, packed.version)
            return packed.tensor
        value = packed.value
        with self._runtime.lock:
            tensor = value.overwritten.get(id(packed))
            if tensor is not None:
                _check_version(tensor, packed.version)
                return tensor
            tensor = value.slots.pop(id(packed), None)
            if tensor is not None:
                _check_version(tensor, packed.version)
            self._runtime.engine.fetch(value)
            if tensor is None:
                tensor = rebuild(value.here(), packed, self._runtime.device)
            self.let_go_released()
        return tensor

    def let_go(self, handle: Handle) -> None:
        """Autograd no longer needs a saved tensor. May be called from anywhere, even amid our own work."""
        try:
            self._released.append((handle.value, id(handle)))
            # Amid our own work (the collector may run at any time) it waits: candidates must not change underneath.
            if not self._runtime.lock._is_owned() and self._runtime.lock.acquire(blocking=False):
                try:
                    self.let_go_released()
                finally:
                    self._runtime.lock.release()
        except Exception:  # at the end of the interpreter anything may be gone already
            if not sys.is_finalizing():
                raise

    def let_go_released(self) -> None:
        while self._released:
            value, key = self._released.popleft()
            value.slots.pop(key, None)
            value.overwritten.pop(key, None)
            self._runtime.engine.unsave(value)


def _check_version(tensor: torch.Tensor, expected: int) -> None:
    """torch's own check, which hooks switch off."""
    if tensor._version != expected:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation:"
            f" [{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {expected}"
            " instead. Hint: enable anomaly detection to find the operation that failed to compute its gradient,"
            " with torch.autograd.set_detect_anomaly(True)."
        )
