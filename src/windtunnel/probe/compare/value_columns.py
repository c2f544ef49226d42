"""The values of a dump as columns: one row per tensor or scalar, in the order they were collected.

    (entry name, body) ──> ColumnBuilder.add_entry ──> rows ──> Columns

A row is named as in msProbe's compare: `Functional.linear.0.forward.input.1`. The part behind the entry's name is a
suffix, stored once in the Vocabulary that all parts of a comparison share.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = [
    "CRC", "HAS_DIGEST", "HAS_SKETCH", "HAS_STATISTICS", "INPUT", "NUMBER", "OUTPUT", "PARAMETER", "SKETCH_NUMBERS",
    "TENSOR", "TEXT", "XOR", "ColumnBuilder", "Columns", "Vocabulary",
]  # fmt: skip

TENSOR, NUMBER, TEXT = 0, 1, 2  # kinds of rows
INPUT, PARAMETER, OUTPUT = 0, 1, 2  # roles of rows
HAS_MAX, HAS_MIN, HAS_MEAN, HAS_NORM, HAS_SKETCH, HAS_DIGEST = 1, 2, 4, 8, 16, 32
HAS_STATISTICS = HAS_MAX | HAS_MIN | HAS_MEAN | HAS_NORM
CRC, XOR, LONG = 1, 2, 3  # kinds of digests: 8 hexadecimal digits, 16, more
SKETCH_NUMBERS = 8

# Inputs first, then the module's own parameters, then outputs.
_SECTIONS = (
    ("input_args", "input", INPUT),
    ("input", "input", INPUT),
    ("input_kwargs", "input", INPUT),
    ("parameters", "parameters", PARAMETER),
    ("output", "output", OUTPUT),
)
_KNOWN = {section for section, _, _ in _SECTIONS}
# Where something runs, not what it computes: these may differ between two machines that compute the same.
_PLACES = {"torch.device", "torch.memory_format", "torch.ProcessGroup", "torch.Generator", "torch.Stream"}
_IGNORED_KEYS = {"class_type", "group_id", "group_ranks"}


@dataclass(slots=True)
class Vocabulary:
    """Everything that repeats, as integer codes that mean the same on both sides."""

    suffixes: dict[str, int] = field(default_factory=dict)
    roles: array = field(default_factory=lambda: array("b"))  # of suffixes
    dtypes: dict[str, int] = field(default_factory=dict)
    shapes: dict[tuple[int, ...], int] = field(default_factory=dict)
    texts: dict[str, int] = field(default_factory=dict)

    def suffix(self, text: str, role: int) -> int:
        code = self.suffixes.get(text)
        if code is None:
            code = self.suffixes[text] = len(self.suffixes)
            self.roles.append(role)
        return code


@dataclass(frozen=True, slots=True)
class Columns:
    """One step of one rank. `starts[i]:starts[i + 1]` are the rows of entry i."""

    entries: list[str]
    starts: np.ndarray
    suffix: np.ndarray  # codes of the Vocabulary, as are dtype, shape and text
    kind: np.ndarray
    dtype: np.ndarray
    shape: np.ndarray
    text: np.ndarray
    has: np.ndarray  # bits: which of the statistics were given
    statistics: np.ndarray  # max, min, mean, norm; a plain number is in the first
    n_nan: np.ndarray
    n_inf: np.ndarray
    n_zero: np.ndarray
    digest: np.ndarray
    digest_kind: np.ndarray
    sketch: np.ndarray
    requires_grad: np.ndarray  # 1, 0, or -1 where it is not known
    files: dict[int, str]  # row -> name of its tensor file

    @property
    def n_rows(self) -> int:
        return len(self.suffix)

    def entry_of_rows(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.entries)), np.diff(self.starts))


class ColumnBuilder:
    """Takes entries one by one. A repeated entry replaces the first, in its place."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._words = vocabulary
        self._entries: dict[str, tuple[int, int]] = {}  # name -> its rows
        self._is_ordered = True
        self._suffix, self._dtype, self._shape, self._text = array("i"), array("i"), array("i"), array("i")
        self._kind, self._has, self._digest_kind, self._requires_grad = (
            array("b"),
            array("b"),
            array("b"),
            array("b"),
        )
        self._statistics, self._sketch = array("d"), array("d")
        self._n_nan, self._n_inf, self._n_zero = array("q"), array("q"), array("q")
        self._digest = array("Q")
        self._files: dict[int, str] = {}

    def add_entry(self, name: str, body: Any) -> None:
        first = len(self._suffix)
        if isinstance(body, dict):
            for section, stem, role in _SECTIONS:
                if section in body:
                    self._add(body[section], stem, role)
            for key, value in body.items():
                if key not in _KNOWN:  # gradients of parameters, variables saved by name
                    is_single = isinstance(value, list) and len(value) == 1 and "parameters_grad" in name
                    self._add(value[0] if is_single else value, str(key), OUTPUT)
        else:
            self._add(body, "value", OUTPUT)
        self._is_ordered = self._is_ordered and name not in self._entries
        self._entries[name] = (first, len(self._suffix))

    def finish(self) -> Columns:
        names = list(self._entries)
        spans = np.array(list(self._entries.values()), dtype=np.int64).reshape(-1, 2)
        starts = np.concatenate([[0], np.cumsum(spans[:, 1] - spans[:, 0])])
        written: dict[str, array] = {
            "suffix": self._suffix, "kind": self._kind, "dtype": self._dtype, "shape": self._shape, "text": self._text,
            "has": self._has, "statistics": self._statistics, "n_nan": self._n_nan, "n_inf": self._n_inf,
            "n_zero": self._n_zero, "digest": self._digest, "digest_kind": self._digest_kind, "sketch": self._sketch,
            "requires_grad": self._requires_grad,
        }  # fmt: skip
        columns = {
            name: np.frombuffer(column, dtype=column.typecode)
            if len(column)
            else np.zeros(0, column.typecode)
            for name, column in written.items()
        }
        columns["statistics"] = columns["statistics"].reshape(-1, 4)
        columns["sketch"] = columns["sketch"].reshape(-1, SKETCH_NUMBERS)
        files = self._files
        if not self._is_ordered:
            kept = np.concatenate([np.arange(a, b) for a, b in spans] or [np.zeros(0, int)]).astype(np.int64)
            columns = {name: column[kept] for name, column in columns.items()}
            files = {new: files[old] for new, old in enumerate(kept.tolist()) if old in files}
        return Columns(names, starts.astype(np.int64), **columns, files=files)

    def _add(self, value: Any, stem: str, role: int) -> None:
        if isinstance(value, dict):
            kind = value.get("type")
            if isinstance(kind, str) and ("shape" in value or "value" in value or len(value) == 1):
                if "shape" in value and "dtype" in value:
                    self._add_tensor(value, stem, role)
                elif kind not in _PLACES:
                    self._add_scalar(kind, value.get("value"), stem, role)
            elif not isinstance(kind, str) or kind not in _PLACES:
                for key, each in value.items():
                    if key not in _IGNORED_KEYS:
                        self._add(each, f"{stem}.{key}", role)
        elif isinstance(value, list):
            for index, each in enumerate(value):
                self._add(each, f"{stem}.{index}", role)
        elif value is not None:
            self._add_scalar(type(value).__name__, value, stem, role)

    def _add_tensor(self, value: dict[str, Any], stem: str, role: int) -> None:
        get = value.get
        figures: Any = (get("Max"), get("Min"), get("Mean"), get("Norm"))
        has = HAS_STATISTICS
        if not (type(figures[0]) is type(figures[1]) is type(figures[2]) is type(figures[3]) is float):
            figures, has = _figures(figures)
        if not (figures[2] - figures[2] == 0 == figures[3] - figures[3]):
            has &= ~_overflowed(figures)
        digest = digest_kind = 0
        text = get("md5")
        if isinstance(text, str) and text:
            digest, digest_kind = _digest(text)
            has |= HAS_DIGEST
        sketch = get("sketch")
        if sketch is not None and (numbers := _sketch(sketch)) is not None:
            has |= HAS_SKETCH
        else:
            numbers = _NO_SKETCH
        grad = get("requires_grad")
        if isinstance(name := get("data_name"), str) and name != "-1":
            self._files[len(self._suffix)] = name
        self._row(
            self._words.suffix(stem, role), TENSOR, self._dtype_code(get("dtype")), self._shape_code(get("shape")), -1,
            has, figures, digest, digest_kind, numbers, -1 if grad is None else int(bool(grad)),
        )  # fmt: skip
        n_nan, n_inf, n_zero = get("nan_count"), get("inf_count"), get("zero_count")
        self._n_nan.append(_count(n_nan) if n_nan else 0)
        self._n_inf.append(_count(n_inf) if n_inf else 0)
        self._n_zero.append(_count(n_zero) if n_zero else 0)

    def _add_scalar(self, type_name: str, value: Any, stem: str, role: int) -> None:
        number = None
        if isinstance(value, (int, float)):
            try:
                number = float(value)
            except OverflowError:
                number = None
        text = -1
        if number is None:
            words = json.dumps(value, default=str)[:200]
            text = self._words.texts.setdefault(words, len(self._words.texts))
        self._row(
            self._words.suffix(stem, role), TEXT if number is None else NUMBER, self._dtype_code(type_name),
            self._shape_code(()), text, 0 if number is None else HAS_MAX, [number or 0.0, 0.0, 0.0, 0.0],
            0, 0, _NO_SKETCH, -1,
        )  # fmt: skip
        for counts in (self._n_nan, self._n_inf, self._n_zero):
            counts.append(0)

    def _row(
        self, suffix: int, kind: int, dtype: int, shape: int, text: int, has: int, figures: Sequence[float],
        digest: int, digest_kind: int, sketch: array, requires_grad: int,
    ) -> None:  # fmt: skip
        self._suffix.append(suffix)
        self._kind.append(kind)
        self._dtype.append(dtype)
        self._shape.append(shape)
        self._text.append(text)
        self._has.append(has)
        self._statistics.extend(figures)
        self._digest.append(digest)
        self._digest_kind.append(digest_kind)
        self._sketch.extend(sketch)
        self._requires_grad.append(requires_grad)

    def _dtype_code(self, dtype: Any) -> int:
        dtypes = self._words.dtypes
        code = dtypes.get(dtype) if isinstance(dtype, str) else None
        return dtypes.setdefault(str(dtype), len(dtypes)) if code is None else code

    def _shape_code(self, shape: Any) -> int:
        shapes = self._words.shapes
        try:
            key = tuple(shape)
            code = shapes.get(key)
            if code is None:
                key = tuple(max(0, int(size)) for size in shape)
                code = shapes.setdefault(key, len(shapes))
            return code
        except (TypeError, ValueError, OverflowError):
            return shapes.setdefault((), len(shapes))


_NO_SKETCH = array("d", [0.0] * SKETCH_NUMBERS)


def _figures(found: tuple[Any, ...]) -> tuple[list[float], int]:
    """The statistics that are numbers, and bits that say which."""
    figures, has = [0.0] * len(found), 0
    for index, figure in enumerate(found):
        if figure is not None:
            try:
                figures[index] = float(figure)
                has |= 1 << index
            except (TypeError, ValueError, OverflowError):
                pass
    return figures, has


def _overflowed(figures: Sequence[float]) -> int:
    """Bits of mean and norm if they are infinite although no element is: they overflowed their type."""
    if not all(map(math.isfinite, figures[:2])):
        return 0
    return sum(1 << index for index in (2, 3) if math.isinf(figures[index]))


def _sketch(value: Any) -> array | None:
    try:
        numbers = array("d", value)
    except (TypeError, OverflowError):
        try:
            numbers = array("d", [float(number) for number in value])  # "NaN" where JSON has to be strict
        except (TypeError, ValueError, OverflowError):
            return None
    return numbers if len(numbers) == SKETCH_NUMBERS and math.isfinite(sum(numbers)) else None


def _digest(text: str) -> tuple[int, int]:
    """The digest as a number, and its kind: equal texts give equal numbers."""
    try:
        number = int(text, 16)
    except ValueError:
        number = int.from_bytes(text.encode()[-8:], "big")
    kind = XOR if text.startswith("0x") else CRC if len(text) == 8 else LONG
    return number & 0xFFFF_FFFF_FFFF_FFFF, kind


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 1 << 62 else 0
