"""Resolve the device a program names, and allocate tensors on it.

"cuda" | 0 | torch.device("cuda:1") ──> resolve_device ──> the device as the program will see it
with allocating_on(device): ...     ──> storages made inside torch belong to that device
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._device import DeviceContext

from windtunnel.capture.pytorch.kernels.known_values import remember_values
from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.tensors.storage import CPU, new_tensor, world
from windtunnel.capture.pytorch.tensors.strides import preserved_strides
from windtunnel.capture.pytorch.tensors.traced import is_traced, traced_device

__all__ = [
    "allocating_on",
    "ambient_device",
    "is_simulated_device",
    "plain_device",
    "resolve_device",
    "simulate",
]

Tensor = torch.Tensor
plain_device = torch._C.TensorBase.device.__get__  # torch's own answer, before Tensor.device is replaced


def resolve_device(device: Any) -> torch.device:
    """The device a program means by "cuda", 0, torch.device("cuda:1")…"""
    if device.__class__ is int:
        device = torch.device(world.device_type, device)
    elif not isinstance(device, torch.device):
        device = torch.device(device)
    if device.type == store.SIM.type and device.type != world.device_type:
        if device.index:
            device = torch.device(
                world.device_type, device.index
            )  # torch.device(3): of the extension backend
        else:
            return world.target or world.default_device  # torch's own code passed our device back
    if device.type in world.aliases:
        device = (
            torch.device(world.device_type)
            if device.index is None
            else torch.device(world.device_type, device.index)
        )
    if device.type != world.device_type or device.type == "cpu":
        return device
    if device.index is None:
        return world.default_device
    if device not in world.index_of_device:
        raise RuntimeError(
            f"CUDA error: invalid device ordinal: the script uses {device}, but this run has"
            f" {len(world.index_of_device)} device(s) (set --nproc-per-node to get more)"
        )
    return device


def is_simulated_device(device: torch.device) -> bool:
    """False for the host (unless it is the simulated device) and for meta; raises for another accelerator."""
    if device.type == world.device_type:
        return not (device.type == "cpu" and world.is_worker)  # workers of a data loader work on real tensors
    if device.type in ("cpu", "meta"):
        return False
    raise RuntimeError(
        f"the script uses {device}, but the simulated device is {world.default_device}"
        f" (choose a {device.type} device with --device)"
    )


class allocating_on:
    """While inside torch, new storages belong to this device."""

    __slots__ = ("before", "device")

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __enter__(self) -> None:
        self.before = world.target
        world.target = self.device

    def __exit__(self, *_: object) -> None:
        world.target = self.before


def simulate(real: Tensor, device: torch.device = CPU) -> Tensor:
    """A simulated twin of a real tensor; small ones keep their values. While a compiler traces, its own tensor."""
    if is_traced(real):
        return real.to(traced_device(device))
    twin = new_tensor(tuple(real.shape), preserved_strides(real), real.dtype, device)
    remember_values(twin, real.detach())
    return twin


def ambient_device() -> torch.device:
    """The device of the innermost `with torch.device(...)` or set_default_device, else the CPU."""
    for i in reversed(range(torch._C._len_torch_function_stack())):
        mode = torch._C._get_function_stack_at(i)
        if isinstance(mode, DeviceContext):
            return resolve_device(mode.device)
    return CPU
