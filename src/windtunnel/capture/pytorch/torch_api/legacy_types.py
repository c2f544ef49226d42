"""`torch.FloatTensor`, `torch.cuda.FloatTensor` and their siblings.

torch.npu.FloatTensor([1.0, 2.0])       ──> torch.tensor(…, dtype=float32, device="npu")
isinstance(x, torch.npu.FloatTensor)    ──> x is on the device, and of that type
isinstance(x, torch.ByteTensor)         ──> the same for the host, whose tensors may be simulated: torch's own says no
torch.set_default_tensor_type(…)        ──> set_default_dtype and set_default_device
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.device_argument import is_simulated_device, simulate
from windtunnel.capture.pytorch.tensors.storage import CPU, sim_of

__all__ = ["LegacyType", "install_host_types", "legacy_type_of", "legacy_types"]

_NAMES = {
    torch.float32: "FloatTensor", torch.float16: "HalfTensor", torch.bfloat16: "BFloat16Tensor",
    torch.float64: "DoubleTensor", torch.int64: "LongTensor", torch.int32: "IntTensor", torch.int16: "ShortTensor",
    torch.int8: "CharTensor", torch.uint8: "ByteTensor", torch.bool: "BoolTensor",
}  # fmt: skip


class LegacyType(type):
    """The class of these types: an instance is any tensor of its dtype on its kind of device."""

    dtype: torch.dtype
    device_type: str

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.dtype is cls.dtype
            and instance.device.type == cls.device_type
            and instance.layout is torch.strided
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and not isinstance(args[0], int):
            return torch.tensor(args[0], dtype=cls.dtype, device=cls.device_type)
        return torch.empty(*args, dtype=cls.dtype, device=cls.device_type)


class _HostType(LegacyType):
    """Host tensors are made by torch's own type, which takes more than a shape or a list."""

    original: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and isinstance(args[0], torch.Tensor) and sim_of(args[0]) is not None:
            return args[0].detach().to(CPU, cls.dtype)
        made = cls.original(*args, **kwargs)
        return simulate(made) if is_simulated_device(CPU) else made


def legacy_types(device: str) -> dict[str, type]:
    """Name -> class, for the module of this kind of device."""
    return {name: _made(LegacyType, dtype, name, device, f"torch.{device}") for dtype, name in _NAMES.items()}


def install_host_types() -> None:
    """Replace torch.FloatTensor and its siblings, and what takes one."""
    for dtype, name in _NAMES.items():
        made: Any = _made(_HostType, dtype, name, "cpu", "torch")
        made.original = getattr(torch, name)
        setattr(torch, name, made)
    torch.set_default_tensor_type = _set_default_tensor_type(torch.set_default_tensor_type)


def legacy_type_of(name: Any) -> LegacyType | None:
    """The type that a program names, as a class or a text ("torch.cuda.FloatTensor"); None if it is none of these."""
    if isinstance(name, str):
        found: Any = torch
        for part in name.removeprefix("torch.").split("."):
            found = getattr(found, part, None)
        name = found
    return name if isinstance(name, LegacyType) else None


def _made(kind: type, dtype: torch.dtype, name: str, device: str, module: str) -> type:
    own = {"dtype": dtype, "device_type": device, "layout": torch.strided, "is_sparse": False}
    return kind(name, (), own | {"is_cuda": device == "cuda", "__module__": module})


def _set_default_tensor_type(original: Any) -> Any:
    def set_default_tensor_type(t: Any) -> None:
        named = legacy_type_of(t)
        if named is None:
            original(t)
            return
        torch.set_default_dtype(named.dtype)
        torch.set_default_device(None if named.device_type == "cpu" else named.device_type)

    return set_default_tensor_type
