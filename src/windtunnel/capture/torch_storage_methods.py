"""Methods of a storage that speak of devices or sizes: `.device`, `.cuda()`, `.resize_()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from windtunnel.capture import torch_storage as store
from windtunnel.capture.torch_checkpoint import move_storage
from windtunnel.capture.torch_named_device import resolve_device

__all__ = ["install_storage_methods"]

Storage = torch.UntypedStorage


def install_storage_methods() -> None:
    """Make storages of simulated tensors answer for their device."""
    plain_device = Storage.device.__get__  # type: ignore[attr-defined]
    Storage.device = property(lambda self: _device_of(self, plain_device))  # type: ignore[assignment, method-assign]
    Storage.is_cuda = property(lambda self: self.device.type == "cuda")  # type: ignore[assignment, method-assign]
    Storage.resize_ = _resize(Storage.resize_)  # type: ignore[assignment, method-assign]
    Storage.nbytes = _n_bytes(Storage.nbytes)  # type: ignore[assignment, method-assign]
    Storage.size = _n_bytes(Storage.size)  # type: ignore[assignment, method-assign]
    for word in ("cuda", "npu"):
        setattr(Storage, word, _mover(word))
    Storage.cpu = lambda self: self if self.device.type == "cpu" else move_storage(self, store.CPU)  # type: ignore[method-assign]


def _device_of(storage: Storage, plain_device: Callable[[Storage], torch.device]) -> torch.device:
    sim = store.sims.get(storage._cdata)
    return plain_device(storage) if sim is None else sim.device


def _mover(word: str) -> Callable[..., Storage]:
    def move(self: Storage, device: Any = None, non_blocking: bool = False) -> Storage:
        wanted = resolve_device(torch.device(word, device) if isinstance(device, int) else device or word)
        return self if self.device == wanted else move_storage(self, wanted)

    return move


def _resize(original: Callable[..., Any]) -> Callable[..., Any]:
    def resize(self: Storage, n_bytes: int) -> Any:
        sim = store.sims.get(self._cdata)
        if sim is None:
            return original(self, n_bytes)
        store.resize(sim, n_bytes)
        return self

    return resize


def _n_bytes(original: Callable[..., int]) -> Callable[..., int]:
    def n_bytes(self: Storage) -> int:
        sim = store.sims.get(self._cdata)
        return original(self) if sim is None else sim.n_bytes

    return n_bytes
