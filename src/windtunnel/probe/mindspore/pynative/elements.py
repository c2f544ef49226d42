"""MindSpore tensors and MindSpore's other values as the JSON text of a dump.

    tensor ──> meter ──> {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [...], "Max": ..., "data_name": ...}

Everything that is no tensor is encoded as in every framework: `windtunnel.probe.collect.elements`.
"""

from __future__ import annotations

import json
import zlib
from json.encoder import encode_basestring_ascii as quote
from typing import Any

import numpy as np
from mindspore import Tensor
from mindspore._c_expression import typing as types
from mindspore.mint import distributed

from windtunnel.probe.collect.elements import Elements as AnyElements
from windtunnel.probe.collect.elements import Measured, Pieces
from windtunnel.probe.collect.values import ValueWords
from windtunnel.probe.config.slices import tensor_index
from windtunnel.probe.files.tensor_store import TensorStore
from windtunnel.probe.measure.statistics import Statistics
from windtunnel.probe.mindspore.pynative.tensor_meter import MindSporeMeter, host_array, plain_array

__all__ = ["WORDS", "Elements", "dtype_name", "tensors_in"]

WORDS = ValueWords(Tensor, lambda tensor: Tensor(np.array(tensor.asnumpy())))
tensors_in = WORDS.tensors_in
_DTYPES: dict[Any, str] = {}


class Elements(AnyElements):
    """Encodes the values of one debugger."""

    tensor_type = Tensor
    meter: MindSporeMeter

    def tensor(self, out: Pieces, tensor: Tensor, stem: str, store: TensorStore | None) -> Measured:
        array = host_array(tensor)
        shape = list(tensor.shape)
        if array is not None and self.slices:
            index = tensor_index(self.slices, shape)
            if index is not None:
                array = array[index]
                shape = list(array.shape)
        measured = Measured(Statistics() if array is None else self.meter.statistics(array), None)
        middle = ""
        if store is not None and array is not None:
            name = self._save(array, measured, stem, store)
            middle = f', "data_name": {quote(name)}' if name else ""
        head = f'{{"type": "mindspore.Tensor", "dtype": "{dtype_name(tensor)}", "shape": {shape}'
        out.append(self.text(measured, head, middle))
        return measured

    def _save(self, array: np.ndarray, measured: Measured, stem: str, store: TensorStore) -> str | None:
        plain: Any = np.ascontiguousarray(plain_array(array))
        if self.is_async and not plain.flags.owndata:  # another thread writes it, so it needs its own copy
            plain = plain.copy()
        save = store.save_later if self.is_async else store.save
        data = memoryview(plain).cast("B") if plain.size else memoryview(b"")
        return save(stem, data, plain.dtype.name, array.shape, None, self.checksum(measured))

    def other(self, value: Any) -> str | None:
        if isinstance(value, types.Type):
            return f'{{"type": "mindspore.dtype", "value": "{value}"}}'
        if isinstance(value, distributed.P2POp):
            return self._transfer(value)
        return None

    def _transfer(self, value: Any) -> str:
        """One transfer of `batch_isend_irecv`."""
        pieces: Pieces = []
        self.encode(pieces, value.tensor, "", None)
        group = f"{zlib.crc32(str(value.group).encode()):08x}" if value.group else None
        rest = {"op": str(value.op), "peer": value.peer, "tag": value.tag, "group_id": group}
        text = json.dumps(rest, default=str)[1:]
        return f'{{"class_type": "mindspore.mint.distributed.P2POp", "tensor": {"".join(pieces)}, {text}'


def dtype_name(tensor: Tensor) -> str:
    """As msProbe writes it: "Float32"."""
    dtype = tensor.dtype
    name = _DTYPES.get(dtype)
    if name is None:
        name = _DTYPES[dtype] = str(dtype)
    return name
