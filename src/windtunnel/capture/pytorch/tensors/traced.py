"""Tell tensors of a compiler's trace, which stand for a simulated tensor, from real and simulated ones.

torch.compile traces the program with FakeTensors and FunctionalTensors ──> is_traced(tensor)
traced_device(the program's device)                                  ──> the device of such a tensor
with compiling: ...                                                  ──> what runs is the compiler's: it is not recorded
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.tensors.storage import CPU, NO_DEVICE, World, world

__all__ = ["compiling", "is_traced", "traced_device"]


class _Compiling(threading.local):
    """While a compiler works in this thread, tensors are on the same devices as ever, but in nobody's account."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1
        if self.depth == 1:
            world.index_of_device = dict.fromkeys(World.index_of_device, NO_DEVICE)  # type: ignore[misc]  # this thread's

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            del world.index_of_device

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The compiler runs a part of the program for real."""
        depth, self.depth = self.depth, 0
        if depth:
            silent = world.index_of_device
            del world.index_of_device
        try:
            yield
        finally:
            self.depth = depth
            if depth:
                world.index_of_device = silent  # type: ignore[misc]


compiling = _Compiling()


def is_traced(tensor: torch.Tensor) -> bool:
    """Whether a compiler made this tensor to follow the program: it has a device, but no storage anywhere."""
    return isinstance(tensor, (FakeTensor, FunctionalTensor)) or torch._is_functional_tensor(tensor)


def traced_device(device: torch.device) -> torch.device:
    """The device that a traced tensor has inside torch. On the CPU that is the host's own, which can trace itself."""
    if world.device_type == "cpu":
        return CPU if device.type == store.SIM.type else device
    return store.SIM if device.type == world.device_type else device
