"""Python values as the JSON text of a dump, each tensor with its statistics and, if asked, its file.

    value ──> tensor? ──> the framework's own `tensor` ──> {"type": "torch.Tensor", ..., "Max": ..., "data_name": ...}
          └─> number, text, list, dict, dataclass, ... ──> {"type": "int", "value": 3}, [...], {...}

Text is built directly, piece by piece: the dump of a step has thousands of values, and building dictionaries only to
encode them would cost more than the statistics.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring_ascii as quote
from typing import Any, Protocol

import numpy

from windtunnel.probe.collect.values import DEEPEST
from windtunnel.probe.config.slices import Slice
from windtunnel.probe.files.tensor_store import TensorStore
from windtunnel.probe.measure.statistics import Statistics, array_statistics, statistics_json

__all__ = ["Elements", "Measured", "Meter", "Pieces"]

Pieces = list  # of str, and of callables that return str once the meter has settled

_PLAIN = (int, float, str, bool)


class Measured:
    """The statistics of one tensor at one moment."""

    __slots__ = ("json", "key", "stats")

    def __init__(self, stats: Statistics | None, key: Any) -> None:
        self.stats = stats  # None until settle(), if the tensor is on a device
        self.key = key  # two tensors with the same key have the same bytes; None: not known
        self.json: Any = None  # a place for the caller to cache the text


class Meter(Protocol):
    """Measures the tensors of one framework."""

    summary_mode: str

    def measure(self, tensor: Any) -> Measured:
        """The statistics of a tensor, or a promise of them."""

    def settle(self) -> None:
        """Complete what waits for a device."""

    def forget(self) -> None:
        """Measure every tensor anew from here on: its memory may have been written."""


class Elements:
    """Encodes the values of one debugger; `store` says where tensor files go (None: no files).

    A framework says what its tensors are (`tensor_type`), encodes them (`tensor`) and its other own values (`other`).
    """

    tensor_type: type
    size_type: type | tuple = ()  # of shapes, which are tuples with their own type

    def __init__(self, meter: Meter, slices: tuple[Slice, ...] = (), is_async: bool = False) -> None:
        self.meter = meter
        self.is_async = is_async
        self.is_md5 = meter.summary_mode == "md5"
        self.is_xor = meter.summary_mode == "xor"
        self.slices = slices

    def tensor(self, out: Pieces, tensor: Any, stem: str, store: TensorStore | None) -> Measured:
        """Append one tensor, and save its bytes if there is a store."""
        raise NotImplementedError

    def other(self, value: Any) -> str | None:
        """The text of a value that only the framework knows; None for any other value."""
        raise NotImplementedError

    def encode(self, out: Pieces, value: Any, stem: str, store: TensorStore | None) -> None:
        """Append the text of `value` to `out`; `stem` names the files of the tensors in it."""
        self._any(out, value, stem, store, 0)

    def listed(self, out: Pieces, values: Iterable, stem: str, store: TensorStore | None) -> None:
        """Append a JSON list; the files are `stem`.0, `stem`.1, ..."""
        self._list(out, values, stem, store, 0)

    def named(self, out: Pieces, values: Mapping, stem: str, store: TensorStore | None) -> None:
        """Append a JSON object; the files are `stem`.key."""
        self._dict(out, values.items(), stem, store, 0)

    def inputs(
        self, out: Pieces, entry: str, args: Iterable, kwargs: Mapping, store: TensorStore | None
    ) -> None:
        """Append the inputs of an entry under msProbe's keys; in backward they are one list."""
        if entry.endswith(".backward"):
            out.append('"input": ')
            self.listed(out, (*args, *kwargs.values()), f"{entry}.input", store)
        else:
            out.append('"input_args": ')
            self.listed(out, args, f"{entry}.input", store)
            out.append(', "input_kwargs": ')
            self.named(out, kwargs, f"{entry}.kwargs", store)

    def _any(self, out: Pieces, value: Any, stem: str, store: TensorStore | None, depth: int) -> None:
        if isinstance(value, self.tensor_type):
            self.tensor(out, value, stem, store)
        elif value is None:
            out.append("null")
        elif type(value) in _PLAIN:
            out.append(f'{{"type": "{type(value).__name__}", "value": {json.dumps(value)}}}')
        elif depth >= DEEPEST:
            out.append("null")
        elif isinstance(value, (list, tuple)) and not isinstance(value, self.size_type):
            if hasattr(value, "_fields"):
                self._dict(out, zip(value._fields, value, strict=True), stem, store, depth + 1)
            else:
                self._list(out, value, stem, store, depth + 1)
        elif isinstance(value, Mapping):
            self._dict(out, value.items(), stem, store, depth + 1)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
            self._dict(out, fields, stem, store, depth + 1)
        else:
            out.append(self._other(value))

    def _list(self, out: Pieces, values: Iterable, stem: str, store: TensorStore | None, depth: int) -> None:
        out.append("[")
        for index, value in enumerate(values):
            if index:
                out.append(", ")
            self._any(out, value, f"{stem}.{index}", store, depth)
        out.append("]")

    def _dict(self, out: Pieces, items: Iterable, stem: str, store: TensorStore | None, depth: int) -> None:
        out.append("{")
        for index, (key, value) in enumerate(items):
            out.append(f"{', ' if index else ''}{quote(str(key))}: ")
            self._any(out, value, f"{stem}.{key}", store, depth)
        out.append("}")

    def _other(self, value: Any) -> str:
        if isinstance(value, slice):
            return json.dumps(
                {"type": "slice", "value": [_bound(value.start), _bound(value.stop), _bound(value.step)]}
            )
        if value is Ellipsis:
            return '{"type": "ellipsis", "value": "..."}'
        if isinstance(value, numpy.ndarray):
            return _array(value)
        if isinstance(value, numpy.generic):
            return f'{{"type": "{type(value).__name__}", "value": {json.dumps(value.item(), default=str)}}}'
        found = self.other(value)
        if found is not None:
            return found
        if isinstance(value, _PLAIN):  # subclasses: enums of int, str
            return f'{{"type": "{type(value).__name__}", "value": {quote(str(value))}}}'
        return "null"

    def text(self, measured: Measured, head: str, middle: str) -> str:
        """A tensor's element: its head, its statistics, and in between what differs between two uses of it."""
        found = measured.json
        if found is None:
            found = measured.json = self._figures(measured)
        return f"{head}{found[0]}{middle}{found[1]}}}"

    def _figures(self, measured: Measured) -> tuple[str, str]:
        stats = measured.stats
        assert stats is not None, "the meter has settled"
        if self.is_xor:
            return f', "md5": {json.dumps(stats.crc)}', ""
        first, last = statistics_json(stats)
        last = f", {last}" if last else ""
        if self.is_md5:
            last = f', "md5": {json.dumps(stats.crc)}{last}'
        return f", {first}", last

    def checksum(self, measured: Measured) -> int | None:
        """The CRC-32 of the tensor's bytes, if it is known."""
        return int(measured.stats.crc, 16) if self.is_md5 and measured.stats and measured.stats.crc else None


def _bound(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _array(value: numpy.ndarray) -> str:
    figures = ", ".join(filter(None, statistics_json(array_statistics(value))))
    return f'{{"type": "numpy.ndarray", "dtype": "{value.dtype}", "shape": {list(value.shape)}, {figures}}}'
