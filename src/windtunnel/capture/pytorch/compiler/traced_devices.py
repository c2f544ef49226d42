"""Which device a traced tensor has: the simulated backend's inside torch, the program's name for it inside Inductor.

The CPU build of torch has no device guard for "cuda", so autograd and many C++ functions abort on a traced CUDA tensor.
Those of the simulated backend work. Inductor, on the other hand, must read "cuda" to choose its code generator, its
templates and its constraints: while it lowers a graph, Python reads the program's name and C++ still gets the backend's.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.tensors.storage import CPU, world
from windtunnel.capture.pytorch.tensors.traced import traced_device

__all__ = ["install_traced_devices", "lowering", "seen_by_program"]


class _Lowering(threading.local):
    """`with lowering:` Inductor is at work in this thread."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


lowering = _Lowering()


def seen_by_program(device: torch.device) -> torch.device:
    """The device as the program knows it."""
    if device.type != store.SIM.type or device.type == world.device_type:
        return device
    return CPU if world.device_type == "cpu" else torch.device(world.device_type, device.index or 0)


def _inside_torch(device: Any) -> torch.device:
    return traced_device(torch.device(device))


def install_traced_devices() -> None:
    """Traced tensors on the program's device are of the simulated backend."""
    if world.device_type == store.SIM.type:
        return
    _install_constructor()
    _install_property()
    _install_answers_to_cpp()


def _install_constructor() -> None:
    new = FakeTensor.__new__
    names = ("device", "fake_device", "_fake_device")

    def __new__(
        cls: type, mode: Any = None, elem: Any = None, device: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if device is not None:
            device = _inside_torch(device)
        for name in names:
            if kwargs.get(name) is not None:
                kwargs[name] = _inside_torch(kwargs[name])
        return new(cls, mode, elem, device, *args, **kwargs)

    FakeTensor.__new__ = __new__  # type: ignore[method-assign, assignment]


def _install_property() -> None:
    def get(self: Any) -> torch.device:
        device = self.__dict__["_fake_device"]
        return seen_by_program(device) if lowering.depth else device

    def set(self: Any, device: torch.device) -> None:
        self.__dict__["_fake_device"] = _inside_torch(device)

    FakeTensor.fake_device = property(get, set)  # type: ignore[assignment, method-assign]


def _install_answers_to_cpp() -> None:
    """C++ asks a traced tensor for its device through `prim.device`."""
    ask = torch.ops.prim.device.default
    dispatch: Any = FakeTensor.__torch_dispatch__

    def answer(tensor: Any) -> torch.device:
        return (
            torch.device("meta") if tensor.fake_mode.in_kernel_invocation else tensor.__dict__["_fake_device"]
        )

    def __torch_dispatch__(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ask:
            return answer(args[0])
        return dispatch(func, types, args, kwargs)

    FakeTensor.__torch_dispatch__ = classmethod(__torch_dispatch__)  # type: ignore[method-assign, assignment]
    fake_tensor._DISPATCH_META_HANDLERS[ask] = lambda args: answer(args[0])
