"""Remembers what was measured where, so that a tensor that did not change is not measured again.

    tensor ──> storage, place, geometry, version ──> known? and a few elements are as they were ──> what was measured

A wrong answer would be worse than a slow one. An entry is used only if all of this holds:

- The storage is the same object. A weak reference is held, so while the entry lives no other storage can take its
  place, even if the memory is freed and used again. Address, size, shape, strides and type are the same too, so
  `resize_`, `set_`, assignment to `.data` and reallocation by FSDP are seen.
- The version counter is the same: every in-place operation and every `out=` raises it. Tensors made in inference mode
  have none and are never remembered.
- The bytes are the same: all of them up to 1 KiB, else 32 elements from the first to the last, compared bit by bit.
  This is for writers that leave the counter alone: `x.data.add_()`, numpy views, collectives, FSDP's all-gather. They
  change nearly every element; one that changes a few elements of a large tensor would be missed.

So the cache is only to be trusted for as long as such a writer is not to be expected, from the result of one operation
to the argument of the next: call `clear` at the end of a step, and wherever memory may be written behind torch's back.
"""

from __future__ import annotations

from typing import Any

import torch

try:
    from windtunnel.probe.fused import glimpse
except ImportError:  # without it looking again costs as much as a small measurement: nothing is remembered
    glimpse = None

__all__ = ["MemoryCache"]

_MOST = 8192


class MemoryCache:
    """Maps unchanged tensors in host memory to what was measured of them."""

    def __init__(self) -> None:
        self._entries: dict[tuple, _Entry] = {}

    def place(self, tensor: torch.Tensor, address: int, shape: Any, strides: Any) -> tuple | None:
        """What identifies the tensor's memory and version, or None if it cannot be remembered."""
        if glimpse is None or tensor.is_inference():
            return None
        storage = tensor.untyped_storage()
        return storage._cdata, address, storage.nbytes(), tensor._version, tensor.dtype, shape, strides

    def find(self, place: tuple) -> Any:
        """What was remembered of this place, if its bytes are still the same."""
        entry = self._entries.get(place)
        if entry is None or glimpse(place[1], entry.item_size, place[5], place[6]) != entry.seen:
            return None
        return entry.value

    def remember(self, place: tuple, tensor: torch.Tensor, value: Any) -> None:
        entries = self._entries
        if len(entries) >= _MOST:
            entries.clear()
        item_size = tensor.element_size()
        seen = glimpse(place[1], item_size, place[5], place[6])
        entries[place] = _Entry(tensor.untyped_storage()._weak_ref(), item_size, seen, value)

    def clear(self) -> None:
        self._entries.clear()


class _Entry:
    __slots__ = ("_weak", "item_size", "seen", "value")

    def __init__(self, weak: int, item_size: int, seen: bytes, value: Any) -> None:
        self._weak, self.item_size, self.seen, self.value = weak, item_size, seen, value

    def __del__(self, free=torch.UntypedStorage._free_weak_ref) -> None:
        free(self._weak)
