"""The types in MindSpore's graph files: how many bytes a value has.

    "<Tuple[Tensor[Float32]*2], TupleShape((32), (32, 128))>" ──> parse_type ──> (TensorType, TensorType)

A value is a tensor, a tuple of values, or something on the host (a number, a function, a monad).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

__all__ = ["IrType", "TensorType", "parse_type", "split_list"]

_BITS = {
    "Bool": 8, "Int4": 4, "Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64,
    "UInt8": 8, "UInt16": 16, "UInt32": 32, "UInt64": 64,
    "Float8E4M3FN": 8, "Float8E5M2": 8, "HiFloat8": 8, "Float16": 16, "BFloat16": 16, "Float32": 32, "Float64": 64,
    "Complex64": 64, "Complex128": 128,
}  # fmt: skip
_OPEN, _CLOSE = "([{<", ")]}>"
_DEEPEST = 20  # brackets inside brackets
_MOST_ITEMS = 1_000_000  # of a tuple
_LARGEST = 1 << 50  # bytes: no device is larger


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor of this rank."""

    dtype: str
    shape: tuple[int, ...]
    ref_key: str = ""  # the parameter that it is, where it is one

    @property
    def n_bytes(self) -> int:
        return -(-prod(self.shape) * _BITS[self.dtype] // 8)


IrType = TensorType | tuple["IrType", ...] | None  # None: on the host


def parse_type(text: str) -> IrType:
    """Read `<type, shape, …>`; raises ValueError with the reason."""
    if not (text.startswith("<") and text.endswith(">")):
        raise ValueError(f"{text[:40]!r} is not a type")
    parts = _split(text[1:-1])
    if len(parts) < 2:
        raise ValueError(f"{text[:40]!r} has no shape")
    ref_key = next((part.removeprefix("ref_key=") for part in parts[2:] if part.startswith("ref_key=")), "")
    return _join(parts[0], parts[1], ref_key, 0)


def split_list(text: str, start: int) -> tuple[tuple[str, ...], int]:
    """Split `(a, b(c, d))`, whose bracket opens at `start`, into its items; also where it ends."""
    end = _matching(text, start)
    return tuple(_split(text[start + 1 : end])), end + 1


def _join(kind: str, shape: str, ref_key: str, depth: int) -> IrType:
    """Match a type with a shape, level by level."""
    if depth > _DEEPEST:
        raise ValueError("a type with too many levels")
    if kind.startswith("Ref[") and kind.endswith("]"):
        return _join(kind[4:-1], shape, ref_key, depth + 1)
    if kind.startswith("Tensor[") and kind.endswith("]"):
        return _tensor(kind[7:-1], shape, ref_key)
    if kind.startswith(("Tuple[", "List[")) and kind.endswith("]"):
        return _sequence(kind[kind.index("[") + 1 : -1], shape, depth)
    return None


def _tensor(dtype: str, shape: str, ref_key: str) -> TensorType:
    if dtype not in _BITS:
        raise ValueError(f"a tensor of {dtype[:40]!r}")
    if not (shape.startswith("(") and shape.endswith(")")):
        raise ValueError(f"a tensor of shape {shape[:40]!r}")
    sizes = [size for size in _split(shape[1:-1]) if size]  # "(3,)" is written by some versions
    if any(size.startswith("-") for size in sizes):
        raise ValueError(f"the shape {shape[:40]} is known only when the program runs")
    if not all(size.isascii() and size.isdecimal() and len(size) < 16 for size in sizes):
        raise ValueError(f"a tensor of shape {shape[:40]!r}")
    tensor = TensorType(dtype, tuple(map(int, sizes)), ref_key)
    if tensor.n_bytes > _LARGEST:
        raise ValueError(f"a tensor of {tensor.n_bytes} bytes")
    return tensor


def _sequence(items: str, shape: str, depth: int) -> IrType:
    kinds: list[str] = []
    for item in _split(items):
        kind, times = item, "1"
        if item.rpartition("*")[2].isdecimal():
            kind, _, times = item.rpartition("*")
        if len(times) > 7 or len(kinds) + int(times) > _MOST_ITEMS:
            raise ValueError(f"a tuple of more than {_MOST_ITEMS:,} items")
        kinds += [kind] * int(times)
    if not any("Tensor[" in kind for kind in kinds):
        return None  # numbers; some versions leave their shapes out
    if not (shape.startswith(("TupleShape(", "ListShape(")) and shape.endswith(")")):
        raise ValueError(f"a tuple of shape {shape[:40]!r}")
    shapes = _split(shape[shape.index("(") + 1 : -1])
    if len(shapes) != len(kinds):
        raise ValueError(f"a tuple of {len(kinds)} items with {len(shapes)} shapes")
    return tuple(_join(kind, one, "", depth + 1) for kind, one in zip(kinds, shapes, strict=True))


def _split(text: str) -> list[str]:
    """Split at the commas outside all brackets and quotes."""
    if not text.strip():
        return []
    if not any(char in text for char in '([{<"'):
        return [part.strip() for part in text.split(",")]
    items, depth, start, is_quoted = [], 0, 0, False
    for i, char in enumerate(text):
        if char == '"':
            is_quoted = not is_quoted
        elif is_quoted:
            continue
        elif char == "," and depth == 0:
            items.append(text[start:i].strip())
            start = i + 1
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
    if depth or is_quoted:
        raise ValueError("an unbalanced bracket")
    return [*items, text[start:].strip()]


def _matching(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes."""
    depth, is_quoted = 0, False
    for i in range(start, len(text)):
        char = text[i]
        if char == '"':
            is_quoted = not is_quoted
        elif is_quoted:
            continue
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            if depth == 0:
                return i
    raise ValueError("an unbalanced bracket")
