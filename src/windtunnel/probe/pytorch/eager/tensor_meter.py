"""Measures torch tensors without affecting the program: no gradient, mode, version or random number is touched.

tensor ──> plain tensor ──> in host memory? ──> known and unchanged? ──> else one pass over the memory
                                       └─ no ──> queued on its device until settle()
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

from windtunnel.probe.collect.elements import Measured
from windtunnel.probe.measure.statistics import (
    Statistics,
    array_statistics,
    array_xor,
    in_own_type,
    memory_statistics,
)
from windtunnel.probe.pytorch.eager.device_statistics import DeviceQueue
from windtunnel.probe.pytorch.eager.memory_cache import MemoryCache
from windtunnel.probe.pytorch.eager.tensor_memory import PLAIN_TYPES, host_array, is_in_storage, plain_tensor
from windtunnel.probe.pytorch.eager.transforms import outside

__all__ = ["Measured", "TorchMeter"]


class TorchMeter:
    """Measures tensors, from any thread.

    summary_mode "statistics" gives everything but the checksum, "md5" adds the CRC-32, "xor" gives only the xor of the
    bytes. Sums are always accurate; with precision "low" their results are rounded to the tensor's own type.
    """

    def __init__(self, summary_mode: str, precision: str = "high") -> None:
        self.summary_mode = summary_mode
        self._is_low = precision == "low"
        self._wants_crc = summary_mode == "md5"
        self._is_xor = summary_mode == "xor"
        self._cache = MemoryCache()
        self._queue = DeviceQueue(summary_mode, precision)

    def measure(self, tensor: torch.Tensor) -> Measured:
        """Measure a tensor as it is now; never raises: a tensor that cannot be measured has statistics of None."""
        try:
            if _count_modes():
                with _NO_FUNCTIONS():
                    return self._measure_now(tensor)
            return self._measure_now(tensor)
        except Exception:
            # A wrapped tensor has no address, a nested one no shape: torch says so by many kinds of errors.
            return self._measure_odd(tensor)

    def settle(self) -> None:
        """Wait for the devices once, and give all measurements that were queued their statistics."""
        self._queue.settle()

    def forget(self) -> None:
        """Measure every tensor anew from here on: call it where memory may have been written without torch knowing."""
        self._cache.clear()

    def _measure_now(self, tensor: torch.Tensor) -> Measured:
        if type(tensor) in PLAIN_TYPES:
            kind = _KINDS.get(tensor.dtype)
            if kind is not None and tensor.is_cpu and not self._is_xor and not tensor.is_neg():
                return self._measure_memory(tensor, kind)
        with _NO_FUNCTIONS():
            return self._measure_any(tensor)

    def _measure_memory(self, tensor: torch.Tensor, kind: tuple[str, int]) -> Measured:
        """The quick way: no operation of torch is called."""
        code, item_size = kind
        address, shape, strides = tensor.data_ptr(), tensor.shape, tensor.stride()
        if address == 0:
            return self._measure_odd(tensor) if tensor._is_zerotensor() else self._nothing(tensor)
        storage = tensor.untyped_storage()
        n_bytes = storage.nbytes()
        try:
            place = address, shape, strides, n_bytes, code, tensor._version
        except RuntimeError:  # made in inference mode: it has no version
            place = None
        if place is not None:
            known = self._cache.find(place, storage, item_size)
            if known is not None:
                return known
        room: Any = n_bytes - tensor.storage_offset() * item_size
        stats = memory_statistics(address, room, code, shape, strides, self._wants_crc)
        if stats is None:
            stats = self._array_statistics(tensor) if is_in_storage(tensor) else Statistics()
        else:
            stats = self._rounded(stats, tensor.dtype)
        measured = Measured(stats, next(_SERIALS))
        if place is not None:
            self._cache.remember(place, storage, item_size, measured)
        return measured

    def _measure_odd(self, tensor: torch.Tensor) -> Measured:
        try:
            with _NO_FUNCTIONS():
                return self._measure_any(tensor)
        except Exception:
            return Measured(Statistics(), None)

    def _measure_any(self, tensor: torch.Tensor) -> Measured:
        """Measure what is not plain, by torch's own operations where there is no other way; nobody is to see them."""
        with outside(), torch._C._DisableTorchDispatch(), torch.no_grad():
            plain = plain_tensor(tensor)
            if plain is None:
                return Measured(Statistics(), None)
            if not plain.is_cpu:
                return self._nothing(plain) if plain.numel() == 0 else self._measure_later(plain.detach())
            if plain.data_ptr() == 0 or not is_in_storage(plain):
                return self._nothing(plain)
            kind = _KINDS.get(plain.dtype)
            if kind is not None and not self._is_xor and not plain.is_neg():
                return self._measure_memory(plain, kind)
            if self._is_xor:
                return Measured(array_xor(_words(plain)), next(_SERIALS))
            return Measured(self._array_statistics(plain), next(_SERIALS))

    def _measure_later(self, tensor: torch.Tensor) -> Measured:
        measured = Measured(None, next(_SERIALS))
        self._queue.add(tensor, measured)
        return measured

    def _array_statistics(self, tensor: torch.Tensor) -> Statistics:
        """The way of numpy: for complex numbers and rare types, and where one quick pass is not enough or cannot be."""
        crc, dtype = self._wants_crc, tensor.dtype
        if tensor.is_conj() or tensor.is_neg():
            with outside(), torch._C._DisableTorchDispatch(), torch.no_grad():
                tensor = tensor.detach().resolve_conj().resolve_neg()
        if dtype is torch.bfloat16:
            return self._rounded(
                array_statistics(host_array(tensor, np.int16), crc=crc, bfloat16=True), dtype
            )
        if dtype in _IN_NUMPY:
            return self._rounded(array_statistics(host_array(tensor, _IN_NUMPY[dtype]), crc=crc), dtype)
        found = Statistics()
        if dtype in _BY_FLOAT:
            with outside(), torch._C._DisableTorchDispatch(), torch.no_grad():
                found = array_statistics(tensor.detach().float().numpy())
        if crc:
            found.crc = array_statistics(_words(tensor), crc=True).crc
        return found

    def _rounded(self, found: Statistics, dtype: torch.dtype) -> Statistics:
        return in_own_type(found, str(dtype)) if self._is_low else found

    def _nothing(self, tensor: torch.Tensor) -> Measured:
        """An empty tensor, or one without memory."""
        if tensor.numel() or not (self._wants_crc or self._is_xor):
            return Measured(Statistics(), None)
        return Measured(Statistics(crc="00000000" if self._wants_crc else f"0x{0:016x}"), None)


def _words(tensor: torch.Tensor) -> np.ndarray:
    """The elements as integers of the same size, or complex numbers: nothing is computed with them."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().resolve_conj().resolve_neg()
    return host_array(tensor, _WORDS[tensor.element_size()])


_SERIALS = itertools.count(1)
_NO_FUNCTIONS = torch._C.DisableTorchFunction  # neither subclasses nor modes see what is called within
_count_modes = torch._C._len_torch_function_stack
_CODES = {
    torch.float32: "f",
    torch.bfloat16: "E",
    torch.float16: "e",
    torch.float64: "d",
    torch.int64: "q",
    torch.int32: "i",
    torch.int16: "h",
    torch.int8: "b",
    torch.uint8: "B",
    torch.uint16: "H",
    torch.uint32: "I",
    torch.uint64: "Q",
    torch.bool: "?",
}
_KINDS = {dtype: (code, dtype.itemsize) for dtype, code in _CODES.items()}
_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
_IN_NUMPY = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in (*_CODES, torch.complex64, torch.complex128)
    if dtype is not torch.bfloat16
}
_BY_FLOAT = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)
