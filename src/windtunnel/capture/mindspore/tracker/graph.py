"""Read tracker_graph.ir: the operators a MindSpore program ran, with the blocks they read and wrote.

    (%8) = Dense(%2, %6, %7), task_info: 4, attrs {stream_id=0}
        (BFloat16:[512, 4096]) <- (BFloat16:[512, 1024], ...)      ──> TrackedOp
        # File:train.py;Line:12;Function:<module>|...

A block is named by the tick at which it was allocated. Views have `{strdes=[1, 1],offset=0}` after their shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from windtunnel.capture.mindspore.tracker.files import LONGEST_LINE, check_length
from windtunnel.errors import CorruptFile
from windtunnel.events.model import TensorSpec
from windtunnel.foreign_files import open_file

__all__ = ["TrackedOp", "read_operators"]

_MOST_DIGITS = 9  # of a stream or an event
_HEAD = re.compile(r"^\((.*?)\) = (.*)\((.*?)\), task_info: (\d{1,19}), attrs \{(.*)\}\s*$")
_TENSOR = re.compile(r"(\w+):\[([\d, -]*)\](?:\{strdes=\[([\d, -]*)\],offset=(\d+)\})?")
# MindSpore's names of types -> those of a recording
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
    attributes: Mapping[str, str]  # stream_id; event; group, comm_rank
    stack: str

    @property
    def stream(self) -> int:
        return self.number("stream_id") or 0

    def number(self, attribute: str) -> int | None:
        """A numeric attribute; None if it is missing."""
        text = self.attributes.get(attribute, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def read_operators(path: Path) -> Iterator[TrackedOp]:
    """Every operator in the order of the file; a file that was cut off is read up to there."""
    try:
        with open_file(path, "r", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            number = 0
            once: dict[str, str] = {}
            while head := file.readline(LONGEST_LINE):
                tensors, comment = file.readline(LONGEST_LINE), file.readline(LONGEST_LINE)
                number += 3
                for i, text in enumerate((head, tensors, comment)):
                    check_length(path, number - 2 + i, text)
                if not comment.endswith("\n"):
                    return
                yield _operator(path, number - 2, head, tensors, once.setdefault(comment, comment))
    except OSError as error:
        raise CorruptFile(f"cannot read {path}: {error.strerror or error}") from error


def _operator(path: Path, line: int, head: str, tensors: str, comment: str) -> TrackedOp:
    found = _HEAD.match(head)
    results, arrow, arguments = tensors.partition(" <- ")
    if found is None or not arrow or not comment.lstrip().startswith("#"):
        raise CorruptFile(f"{path} line {line}: not an operator as MindSpore writes it: {head[:60]!r}")
    written, name, read, tick, attributes = found.groups()
    try:
        inputs, outputs = _specs(arguments), _specs(results)
    except ValueError:
        raise CorruptFile(
            f"{path} line {line + 1}: not tensors as MindSpore writes them: {tensors[:60]!r}"
        ) from None
    return TrackedOp(
        int(tick),
        name,
        _blocks(read),
        _blocks(written),
        inputs,
        outputs,
        _attributes(attributes),
        _stack(comment),
    )


# The same shapes, attributes and stacks are repeated in every layer and step: each is parsed once.


@lru_cache(maxsize=1 << 14)
def _attributes(text: str) -> Mapping[str, str]:
    pairs = (word.partition("=") for word in text.split(";") if word)
    return {key.strip(): value.strip() for key, _, value in pairs}


@lru_cache(maxsize=1 << 14)
def _stack(comment: str) -> str:
    return comment.strip().removeprefix("#").strip()


def _blocks(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"%(\d{1,19})", text))


@lru_cache(maxsize=1 << 14)
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
    words = [word.strip() for word in text.split(",") if word.strip()]
    if any(len(word) > 19 for word in words):
        raise ValueError("a size that no tensor has")
    return tuple(int(word) for word in words)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
