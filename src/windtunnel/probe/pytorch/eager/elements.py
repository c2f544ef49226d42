"""torch tensors and torch's other values as the JSON text of a dump.

    tensor ──> meter ──> {"type": "torch.Tensor", "dtype": ..., "Max": ..., "requires_grad": ..., "data_name": ...}

Everything that is no tensor is encoded as in every framework: `windtunnel.probe.collect.elements`.
"""

from __future__ import annotations

import json
import zlib
from json.encoder import encode_basestring_ascii as quote
from typing import Any

import torch

from windtunnel.probe.collect.elements import Elements as AnyElements
from windtunnel.probe.collect.elements import Measured, Pieces
from windtunnel.probe.collect.values import ValueWords
from windtunnel.probe.config.slices import tensor_index
from windtunnel.probe.files.tensor_store import TensorStore
from windtunnel.probe.pytorch.eager.tensor_memory import host_bytes, tensor_with_bytes
from windtunnel.probe.pytorch.eager.transforms import is_inside, kind_of_wrapper, outside, unwrapped

__all__ = ["WORDS", "Elements", "Pieces", "tensors_in"]

_DTYPES: dict[torch.dtype, str] = {}


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as it is now; inside a transform of torch.func nothing can be marked to need a gradient."""
    copy = tensor.detach().clone()
    return copy if is_inside() else copy.requires_grad_(tensor.requires_grad)


WORDS = ValueWords(torch.Tensor, _copy)
tensors_in = WORDS.tensors_in


class Elements(AnyElements):
    """Encodes the values of one debugger."""

    tensor_type = torch.Tensor
    size_type = torch.Size

    def tensor(self, out: Pieces, tensor: torch.Tensor, stem: str, store: TensorStore | None) -> Measured:
        """Append one tensor, and save its bytes if there is a store."""
        middle = ', "requires_grad": true' if tensor.requires_grad else ', "requires_grad": false'
        wrapper = kind_of_wrapper(tensor)
        if wrapper is not None:
            tensor = _inner(tensor)
        if self.slices:
            index = tensor_index(self.slices, tensor.shape)
            if index is not None:
                with outside():
                    tensor = tensor.detach()[index]
        measured = self.meter.measure(tensor)
        head = _head(tensor, wrapper)
        if store is not None:
            name = self._save(tensor, measured, stem, store)
            middle += f', "data_name": {quote(name)}' if name else ""
        if measured.stats is not None:
            out.append(self.text(measured, head, middle))
        else:
            out.append(lambda: self.text(measured, head, middle))
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
        crc = self.checksum(measured)
        if self.is_async:  # by a thread of its own, so from a copy that nobody writes to
            return store.save_later(stem, memoryview(bytes(data)), dtype, shape, measured.key, crc)
        return store.save(stem, data, dtype, shape, measured.key, crc)

    def other(self, value: Any) -> str | None:
        if isinstance(value, torch.Size):
            return f'{{"type": "torch.Size", "value": {list(value)}}}'
        if isinstance(value, torch.dtype):
            return f'{{"type": "torch.dtype", "value": "{value}"}}'
        if isinstance(value, torch.device):
            return f'{{"type": "torch.device", "value": "{value}"}}'
        if isinstance(value, torch.memory_format):
            return f'{{"type": "torch.memory_format", "format": "{str(value).removeprefix("torch.")}"}}'
        if type(value).__name__ == "ProcessGroup":
            return _group(value)
        return None


def _dtype(tensor: torch.Tensor) -> str:
    name = _DTYPES.get(tensor.dtype)
    if name is None:
        name = _DTYPES[tensor.dtype] = str(tensor.dtype)
    return name


def _inner(tensor: torch.Tensor) -> torch.Tensor:
    """What a transform of torch.func has wrapped, as far as it can be had."""
    found = unwrapped(tensor)
    return tensor if found is None else found


def _head(tensor: torch.Tensor, wrapper: str | None) -> str:
    kind = type(tensor)
    if wrapper is not None and not tensor.is_nested:
        return f'{{"type": "{wrapper}", "dtype": "{_dtype(tensor)}", "shape": {_sizes(tensor)}'
    if (kind is torch.Tensor or kind is torch.nn.Parameter) and not tensor.is_nested:
        return f'{{"type": "torch.Tensor", "dtype": "{_dtype(tensor)}", "shape": {[*tensor.shape]}'
    name = kind.__name__ if kind.__name__ in _KINDS else "torch.Tensor"
    extra = ""
    if name == "DTensor":
        shard: Any = tensor
        extra = f', "device_mesh": {_plain(shard.device_mesh)}, "placements": {_plain(shard.placements)}'
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


def _group(group: Any) -> str:
    try:
        ranks = torch.distributed.get_process_group_ranks(group)
    except (RuntimeError, ValueError):
        ranks = []
    identity = f"{zlib.crc32(str(ranks).encode()):08x}"
    return json.dumps({"type": "torch.ProcessGroup", "group_ranks": ranks, "group_id": identity})
