"""`torch.cuda.FloatTensor` and its siblings, for the simulated device.

torch.npu.FloatTensor([1.0, 2.0]) ──> torch.tensor(…, dtype=float32, device="npu")
isinstance(x, torch.npu.FloatTensor) ──> x is on the device, and of that type
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["legacy_types"]

_NAMES = {
    torch.float32: "FloatTensor", torch.float16: "HalfTensor", torch.bfloat16: "BFloat16Tensor",
    torch.float64: "DoubleTensor", torch.int64: "LongTensor", torch.int32: "IntTensor", torch.int16: "ShortTensor",
    torch.int8: "CharTensor", torch.uint8: "ByteTensor", torch.bool: "BoolTensor",
}  # fmt: skip


def legacy_types(device: str) -> dict[str, type]:
    """Name -> class, for the module of this kind of device."""
    return {name: _legacy_type(dtype, name, device) for dtype, name in _NAMES.items()}


def _legacy_type(dtype: torch.dtype, name: str, device: str) -> type:
    class Meta(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return (
                isinstance(instance, torch.Tensor)
                and instance.device.type == device
                and instance.dtype is dtype
            )

        def __call__(cls, *args: Any) -> torch.Tensor:
            if args and not isinstance(args[0], int):
                return torch.tensor(args[0], dtype=dtype, device=device)
            return torch.empty(*args, dtype=dtype, device=device)

    return Meta(name, (), {"dtype": dtype})
