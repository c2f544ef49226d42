"""Python and torch values as the JSON text of a dump, each tensor with its statistics and, if asked, its file.

    value ──> tensor? ──> meter ──> {"type": "torch.Tensor", ..., "Max": ..., "data_name": ...}
          └─> number, text, list, dict, dataclass, ... ──> {"type": "int", "value": 3}, [...], {...}

Text is made here and now, piece by piece: a dump of a step has thousands of values, and building dictionaries only
to encode them would cost more than the statistics.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from json.encoder import encode_basestring_ascii as quote
from typing import Any

import numpy
import torch

from windtunnel.probe.statistics import array_statistics, statistics_json
from windtunnel.probe.tensor_slices import Slice, tensor_index
from windtunnel.probe.tensor_store import TensorStore
from windtunnel.probe.torch_bytes import host_bytes, tensor_with_bytes
from windtunnel.probe.torch_statistics import Measured, TorchMeter

__all__ = ["Elements", "Pieces", "tensors_in"]

Pieces = list  # of str, and of callables that give str once the meter has settled

_DTYPES: dict[torch.dtype, str] = {}
_PLAIN = (int, float, str, bool)
_DEEPEST = 10  # a list that holds itself twice still ends


class Elements:
    """Encodes the values of one debugger; `store` says where tensor files go (None: no files)."""

    def __init__(self, meter: TorchMeter, slices: tuple[Slice, ...] = (), is_async: bool = False) -> None:
        self.meter = meter
        self.is_async = is_async
        self.is_md5 = meter.summary_mode == "md5"
        self.is_xor = meter.summary_mode == "xor"
        self.slices = slices

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
        """Append the inputs of an entry under the keys readers know; in backward they are one list."""
        if entry.endswith(".backward"):
            out.append('"input": ')
            self.listed(out, (*args, *kwargs.values()), f"{entry}.input", store)
        else:
            out.append('"input_args": ')
            self.listed(out, args, f"{entry}.input", store)
            out.append(', "input_kwargs": ')
            self.named(out, kwargs, f"{entry}.kwargs", store)

    def _any(self, out: Pieces, value: Any, stem: str, store: TensorStore | None, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            self.tensor(out, value, stem, store)
        elif value is None:
            out.append("null")
        elif type(value) in _PLAIN:
            out.append(f'{{"type": "{type(value).__name__}", "value": {json.dumps(value)}}}')
        elif depth >= _DEEPEST:
            out.append("null")
        elif isinstance(value, torch.Size):
            out.append(f'{{"type": "torch.Size", "value": {list(value)}}}')
        elif isinstance(value, (list, tuple)):
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
            out.append(_other(value))

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

    def tensor(self, out: Pieces, tensor: torch.Tensor, stem: str, store: TensorStore | None) -> Measured:
        """Append one tensor, and save its bytes if there is a store."""
        if self.slices:
            index = tensor_index(self.slices, tensor.shape)
            if index is not None:
                tensor = tensor.detach()[index].requires_grad_(
                    tensor.requires_grad and tensor.is_floating_point()
                )
        measured = self.meter.measure(tensor)
        head = _head(tensor)
        middle = ', "requires_grad": true' if tensor.requires_grad else ', "requires_grad": false'
        if store is not None:
            name = self._save(tensor, measured, stem, store)
            middle += f', "data_name": {quote(name)}' if name else ""
        if measured.stats is not None:
            out.append(self._text(measured, head, middle))
        else:
            out.append(lambda: self._text(measured, head, middle))
        return measured

    def _save(self, tensor: torch.Tensor, measured: Measured, stem: str, store: TensorStore) -> str | None:
        plain = tensor_with_bytes(tensor)
        if plain is None:
            return None
        dtype, shape = _dtype(plain), tuple(plain.shape)
        name = store.save_again(stem, dtype, shape, measured.key)
        if name is not None:
            return name
        data = host_bytes(plain)
        crc = int(measured.stats.crc, 16) if self.is_md5 and measured.stats and measured.stats.crc else None
        if self.is_async:  # by a thread of its own, so from a copy that nobody writes to
            return store.save_later(stem, memoryview(bytes(data)), dtype, shape, measured.key, crc)
        return store.save(stem, data, dtype, shape, measured.key, crc)

    def _text(self, measured: Measured, head: str, middle: str) -> str:
        found = measured.json
        if found is None:
            found = measured.json = self._figures(measured)
        return f"{head}{found[0]}{middle}{found[1]}}}"

    def _figures(self, measured: Measured) -> tuple[str, str]:
        """The statistics as text, before and after the keys that differ between two uses of one tensor."""
        stats = measured.stats
        if self.is_xor:
            return f', "md5": {json.dumps(stats.crc)}', ""
        first, last = statistics_json(stats)
        last = f", {last}" if last else ""
        if self.is_md5:
            last = f', "md5": {json.dumps(stats.crc)}{last}'
        return f", {first}", last


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Every tensor of a value, in the order of its encoding."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEEPEST:
        if isinstance(value, (list, tuple)):
            for item in value:
                yield from tensors_in(item, depth + 1)
        elif isinstance(value, Mapping):
            for item in value.values():
                yield from tensors_in(item, depth + 1)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                yield from tensors_in(getattr(value, field.name, None), depth + 1)


def _dtype(tensor: torch.Tensor) -> str:
    name = _DTYPES.get(tensor.dtype)
    if name is None:
        name = _DTYPES[tensor.dtype] = str(tensor.dtype)
    return name


def _head(tensor: torch.Tensor) -> str:
    kind = type(tensor)
    if (kind is torch.Tensor or kind is torch.nn.Parameter) and not tensor.is_nested:
        return f'{{"type": "torch.Tensor", "dtype": "{_dtype(tensor)}", "shape": {[*tensor.shape]}'
    name = kind.__name__ if kind.__name__ in _KINDS else "torch.Tensor"
    extra = ""
    if name == "DTensor":
        extra = f', "device_mesh": {_plain(tensor.device_mesh)}, "placements": {_plain(tensor.placements)}'
    if tensor.is_nested:
        name = "NestedTensor"
    return f'{{"type": "{name}", "dtype": "{_dtype(tensor)}", "shape": {_sizes(tensor)}{extra}'


_KINDS = {
    "DTensor",
    "FakeTensor",
    "AsyncCollectiveTensor",
    "NestedTensor",
    "BatchedTensor",
    "GradTrackingTensor",
}


def _sizes(tensor: torch.Tensor) -> list[int]:
    """The shape of any tensor; -1 for a size that is not one number (ragged, or only known as a symbol)."""
    found = []
    for dimension in range(tensor.dim()):
        try:
            size = tensor.size(dimension)
        except RuntimeError:
            size = -1
        found.append(size if type(size) is int else -1)
    return found


def _plain(value: Any) -> str:
    return quote(str(value))


def _other(value: Any) -> str:
    if isinstance(value, slice):
        return json.dumps(
            {"type": "slice", "value": [_bound(value.start), _bound(value.stop), _bound(value.step)]}
        )
    if value is Ellipsis:
        return '{"type": "ellipsis", "value": "..."}'
    if isinstance(value, torch.dtype):
        return f'{{"type": "torch.dtype", "value": "{value}"}}'
    if isinstance(value, torch.device):
        return f'{{"type": "torch.device", "value": "{value}"}}'
    if isinstance(value, torch.memory_format):
        return f'{{"type": "torch.memory_format", "format": "{str(value).removeprefix("torch.")}"}}'
    if isinstance(value, numpy.ndarray):
        return _array(value)
    if isinstance(value, numpy.generic):
        return f'{{"type": "{type(value).__name__}", "value": {json.dumps(value.item(), default=str)}}}'
    if isinstance(value, _PLAIN):  # subclasses: enums of int, str
        return f'{{"type": "{type(value).__name__}", "value": {_plain(value)}}}'
    if type(value).__name__ == "ProcessGroup":
        return _group(value)
    return "null"


def _bound(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _array(value: numpy.ndarray) -> str:
    figures = ", ".join(filter(None, statistics_json(array_statistics(value))))
    return f'{{"type": "numpy.ndarray", "dtype": "{value.dtype}", "shape": {list(value.shape)}, {figures}}}'


def _group(group: Any) -> str:
    try:
        ranks = torch.distributed.get_process_group_ranks(group)
    except (RuntimeError, ValueError):
        ranks = []
    identity = f"{zlib.crc32(str(ranks).encode()):08x}"
    return json.dumps({"type": "torch.ProcessGroup", "group_ranks": ranks, "group_id": identity})
