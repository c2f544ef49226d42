"""The element types of tensors: their width, their names in torch and numpy, and their values as plain numbers.

"torch.bfloat16" ──> element_type ──> ElementType ──> numbers(array of bits) ──> float32
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from windtunnel.errors import UsageError

__all__ = ["ElementType", "element_type", "numbers", "type_of_storage"]


@dataclass(frozen=True, slots=True, eq=False)  # one of each exists, so identity is enough, and quick
class ElementType:
    """One element type. `numpy` is how its bits are kept in an array; without `is_npy` numpy has no such number."""

    name: str  # as torch calls it: "bfloat16"
    numpy: str  # "<u2"
    is_npy: bool
    n_bytes: int  # of one element
    storage: str | None  # torch's class of that storage; None: saved as bytes, with the type beside it


def element_type(name: str) -> ElementType:
    """Look up "float32", "torch.float32" or MindSpore's "Float32". Raises UsageError."""
    found = _BY_NAME.get(name) or _BY_NAME.get(name.removeprefix("torch.").removeprefix("mindspore.").lower())
    if found is None:
        raise UsageError(
            f"tensors of type {name[:60]!r} cannot be saved to a file",
            hint=f"supported types: {_NAMES}",
        )
    return found


def type_of_storage(storage: str) -> ElementType | None:
    """The element type of "FloatStorage"; None for the untyped storage and unknown ones."""
    return _BY_STORAGE.get(storage)


def numbers(bits: np.ndarray, kind: ElementType) -> np.ndarray:
    """The values behind the bits, exactly: bfloat16 and 8-bit floats as float32, complex32 as complex64.

    Packed types (float4 in pairs, bits) have no values of their own and stay as they are.
    """
    if kind.is_npy:
        return bits
    if kind.name == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if kind.name == "complex32":
        pairs = np.ascontiguousarray(bits).reshape(*bits.shape, 1).view(np.float16)
        return pairs.astype(np.float32).view(np.complex64).reshape(bits.shape)
    if kind.name in _FLOAT8:
        return _float8_values(kind.name)[bits]
    return bits


@lru_cache(maxsize=8)
def _float8_values(name: str) -> np.ndarray:
    """The 256 values of an 8-bit float type."""
    n_mantissa, bias, special = _FLOAT8[name]
    code = np.arange(256)
    sign = np.where(code >> 7, -1.0, 1.0)
    exponent = (code & 0x7F) >> n_mantissa
    mantissa = (code & ((1 << n_mantissa) - 1)) / (1 << n_mantissa)
    if special == "scale":  # all eight bits are the exponent
        value = np.ldexp(1.0, code - bias)
        value[255] = np.nan
        return value.astype(np.float32)
    normal = np.ldexp(1 + mantissa, exponent - bias)
    value = sign * np.where(exponent == 0, np.ldexp(mantissa, 1 - bias), normal)
    if special == "ieee":
        top = exponent == 31
        value[top] = np.where(mantissa[top] == 0, sign[top] * np.inf, np.nan)
    elif special == "finite":
        value[(code & 0x7F) == 0x7F] = np.nan
    else:  # "unsigned zero": what would be -0 is the only NaN
        value[128] = np.nan
    return value.astype(np.float32)


_FLOAT8 = {  # bits of mantissa, bias of the exponent, how NaN and infinity are encoded
    "float8_e4m3fn": (3, 7, "finite"),
    "float8_e4m3fnuz": (3, 8, "unsigned zero"),
    "float8_e5m2": (2, 15, "ieee"),
    "float8_e5m2fnuz": (2, 16, "unsigned zero"),
    "float8_e8m0fnu": (0, 127, "scale"),
}
_TYPES = (
    ElementType("float64", "<f8", True, 8, "DoubleStorage"),
    ElementType("float32", "<f4", True, 4, "FloatStorage"),
    ElementType("float16", "<f2", True, 2, "HalfStorage"),
    ElementType("bfloat16", "<u2", False, 2, "BFloat16Storage"),
    ElementType("int64", "<i8", True, 8, "LongStorage"),
    ElementType("int32", "<i4", True, 4, "IntStorage"),
    ElementType("int16", "<i2", True, 2, "ShortStorage"),
    ElementType("int8", "|i1", True, 1, "CharStorage"),
    ElementType("uint8", "|u1", True, 1, "ByteStorage"),
    ElementType("bool", "|b1", True, 1, "BoolStorage"),
    ElementType("complex64", "<c8", True, 8, "ComplexFloatStorage"),
    ElementType("complex128", "<c16", True, 16, "ComplexDoubleStorage"),
    ElementType("complex32", "<u4", False, 4, None),
    ElementType("uint16", "<u2", True, 2, None),
    ElementType("uint32", "<u4", True, 4, None),
    ElementType("uint64", "<u8", True, 8, None),
    *(ElementType(name, "|u1", False, 1, None) for name in _FLOAT8),
    ElementType("float4_e2m1fn_x2", "|u1", False, 1, None),
    *(ElementType(name, "|u1", False, 1, None) for name in ("bits8", "bits1x8", "bits2x4", "bits4x2")),
    ElementType("bits16", "<u2", False, 2, None),
)
_NAMES = ", ".join(kind.name for kind in _TYPES)
_BY_NAME = {prefix + kind.name: kind for kind in _TYPES for prefix in ("", "torch.")}
_BY_STORAGE = {kind.storage: kind for kind in _TYPES if kind.storage}
