"""Caches measurements by memory location, so that a tensor that did not change is not measured again.

    tensor ──> storage, place, geometry, version ──> known? and a few elements are as they were ──> what was measured

A wrong answer would be worse than a slow one. An entry is used only if all of this holds:

- The storage is the same object, which torch keeps for as long as any tensor uses it. Only a weak reference is held:
  once the storage is gone, another one at the same address is another object. Address, size, shape, strides and type
  are the same too, so `resize_`, `set_`, assignment to `.data` and reallocation by FSDP are seen.
- The version counter is the same: every in-place operation and every `out=` raises it. Tensors made in inference mode
  have none and are never remembered.
- The bytes are the same: all of them up to 1 KiB, else 32 elements from the first to the last, compared bit by bit.
  This is for writers that leave the counter alone: `x.data.add_()`, numpy views, collectives, FSDP's all-gather. They
  change nearly every element; one that changes a few elements of a large tensor would be missed.

So the cache can only be trusted while no such writer is expected, from the result of one operation to the argument of
the next: call `clear` at the end of a step, and wherever memory may be written without torch knowing.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch

try:
    from windtunnel.probe.measure.fused import glimpse
except ImportError:  # without it looking again costs as much as a small measurement: nothing is remembered
    glimpse = None  # type: ignore[assignment]

__all__ = ["MemoryCache"]

_MOST = 8192


class MemoryCache:
    """Maps unchanged tensors in host memory to what was measured of them."""

    def __init__(self) -> None:
        self._entries: dict[tuple, tuple] = {}

    def find(self, place: tuple, storage: torch.UntypedStorage, item_size: int) -> Any:
        """What was remembered of a place, if it is the same storage and its bytes are the same.

        A place is tensor.data_ptr(), shape and stride(), storage.nbytes(), the type and tensor._version.
        """
        entry = self._entries.get(place)
        if entry is None or entry[0]() is not storage:
            return None
        return entry[2] if glimpse(place[0], item_size, place[1], place[2]) == entry[1] else None

    def remember(self, place: tuple, storage: torch.UntypedStorage, item_size: int, value: Any) -> None:
        """Remember what was measured of the values that are there now."""
        if glimpse is None:
            return
        entries = self._entries
        if len(entries) >= _MOST:
            entries.clear()
        entries[place] = ref(storage), glimpse(place[0], item_size, place[1], place[2]), value

    def clear(self) -> None:
        self._entries.clear()
