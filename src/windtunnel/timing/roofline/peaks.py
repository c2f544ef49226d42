"""The peak rate of a device for an operator: by its type, and whether TF32 is used.

DeviceProfile, Signature, OpClass ──> operations per second
"""

from __future__ import annotations

from windtunnel.devices import DeviceProfile
from windtunnel.events.model import Signature
from windtunnel.timing.operators.operator_classes import OpClass

__all__ = ["fp32_flops", "peak_flops"]

_UNKNOWN_FP32_SHARE = 1 / 16  # of the bf16 peak
_HALVES = {"float16": "fp16_tflops", "bfloat16": "bf16_tflops"}
_BYTE_WIDE = ("float8", "int8", "uint8")


def peak_flops(device: DeviceProfile, signature: Signature, found: OpClass) -> float:
    """Operations a second the device could do in the type of the operator's first input."""
    dtype = signature.inputs[0].dtype
    half = device.bf16_tflops * 1e12
    if (name := _HALVES.get(dtype)) is not None:
        return getattr(device, name) * 1e12 or half
    if dtype.startswith(_BYTE_WIDE):
        return device.fp8_tflops * 1e12 or 2 * half
    full = fp32_flops(device)
    if dtype == "float32":
        # Convolutions use TF32 from Ampere on unless switched off; matrix products do not unless switched on.
        is_tf32 = found is OpClass.CONVOLUTION and device.kind == "cuda" and device.capability >= (8, 0)
        return max(full, device.tf32_tflops * 1e12 or half / 2) if is_tf32 else full
    return device.fp64_tflops * 1e12 or full / 2


def fp32_flops(device: DeviceProfile) -> float:
    """Plain fp32 operations a second."""
    return device.fp32_tflops * 1e12 or device.bf16_tflops * 1e12 * _UNKNOWN_FP32_SHARE
