"""Replace the methods of a storage that depend on its device or size: `.device`, `.cuda()`, `.resize_()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.device_argument import resolve_device
from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.torch_api.saving import move_storage

__all__ = ["install_storage_methods"]

Storage = torch.UntypedStorage


def install_storage_methods() -> None:
    """Make storages of simulated tensors report their device and size."""
    patched: Any = Storage  # the stubs do not allow methods to be replaced
    plain_device = patched.device.__get__
    patched.device = property(lambda self: _device_of(self, plain_device))
    patched.is_cuda = property(lambda self: self.device.type == "cuda")
    patched.resize_ = _resize(Storage.resize_)
    patched.nbytes = _n_bytes(Storage.nbytes)
    patched.size = _n_bytes(Storage.size)
    for word in ("cuda", "npu"):
        setattr(Storage, word, _mover(word))
    patched.cpu = lambda self: self if self.device.type == "cpu" else move_storage(self, store.CPU)


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
