"""Read tracker_graph.ir: the operators a MindSpore program ran, with the blocks they read and wrote.

    (%8) = Dense(%2, %6, %7), task_info: 4, attrs {stream_id=0}
        (BFloat16:[512, 4096]) <- (BFloat16:[512, 1024], ...)      ──> TrackedOp
        # File:train.py;Line:12;Function:<module>|...

A block is named by the tick at which it was allocated. Views carry `{strdes=[1, 1],offset=0}` behind their shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from windtunnel.errors import CorruptFile
from windtunnel.events.model import TensorSpec

__all__ = ["TrackedOp", "read_operators"]

_LONGEST = 1 << 24
_HEAD = re.compile(r"^\((.*?)\) = (.*)\((.*?)\), task_info: (\d{1,19}), attrs \{(.*)\}\s*$")
_TENSOR = re.compile(r"(\w+):\[([\d, -]*)\](?:\{strdes=\[([\d, -]*)\],offset=(\d+)\})?")
# MindSpore's words for types -> those of a recording
_TYPES = {
    "Float64": "float64", "Float32": "float32", "Float16": "float16", "BFloat16": "bfloat16", "Int64": "int64",
    "Int32": "int32", "Int16": "int16", "Int8": "int8", "UInt64": "uint64", "UInt32": "uint32", "UInt16": "uint16",
    "UInt8": "uint8", "Bool": "bool", "Complex64": "complex64", "Complex128": "complex128", "Int4": "int4",
    "Float8E4M3FN": "float8_e4m3fn", "Float8E5M2": "float8_e5m2", "HiFloat8": "hifloat8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrackedOp:
    """One operator as the tracker saw it. Blocks are ticks of allocation."""

    tick: int
    name: str  # "Dense", or in a graph its whole scope: "Default/network-Net/fc-Dense/MatMul-op0"
    read: tuple[int, ...]
    written: tuple[int, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: dict[str, str]  # stream_id; event; group, comm_rank
    stack: str

    @property
    def stream(self) -> int:
        return int(self.attributes.get("stream_id", "0") or 0)


def read_operators(path: Path) -> Iterator[TrackedOp]:
    """Every operator in the order of the file; a file that was cut off is read up to there."""
    try:
        with path.open(encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            number = 0
            while head := file.readline(_LONGEST):
                tensors, comment = file.readline(_LONGEST), file.readline(_LONGEST)
                number += 3
                if not comment.endswith("\n"):
                    return
                yield _operator(path, number - 2, head, tensors, comment)
    except OSError as error:
        raise CorruptFile(f"cannot read {path}: {error.strerror or error}") from error


def _operator(path: Path, line: int, head: str, tensors: str, comment: str) -> TrackedOp:
    found = _HEAD.match(head)
    results, arrow, arguments = tensors.partition(" <- ")
    if found is None or not arrow or not comment.lstrip().startswith("#"):
        raise CorruptFile(f"{path} line {line}: not an operator as MindSpore writes it: {head[:60]!r}")
    written, name, read, tick, attributes = found.groups()
    pairs = (word.partition("=") for word in attributes.split(";") if word)
    return TrackedOp(
        int(tick), name, _blocks(read), _blocks(written), _specs(arguments), _specs(results),
        {key.strip(): value.strip() for key, _, value in pairs}, comment.strip().removeprefix("#").strip(),
    )  # fmt: skip


def _blocks(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"%(\d{1,19})", text))


def _specs(text: str) -> tuple[TensorSpec, ...]:
    return tuple(_spec(*found.groups()) for found in _TENSOR.finditer(text))


def _spec(kind: str, shape: str, strides: str | None, offset: str | None) -> TensorSpec:
    sizes = _numbers(shape)
    return TensorSpec(
        sizes,
        _numbers(strides) if strides is not None else _contiguous(sizes),
        _TYPES.get(kind, kind.lower()),
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word.strip())


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
