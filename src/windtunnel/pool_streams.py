"""Streams that allocate from memory pools of their own, as CUDA graphs do: who captures them and who models memory agree here.

An allocator's free memory belongs to a stream, so a stream that nothing else uses is a pool. It differs from an ordinary one in
that it is kept: kernels of a graph write there at the next replay.
"""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["is_pool_stream", "pool_stream"]

# Snapshots of real runs number streams by address, and no program has objects below 1 MiB.
_FIRST = 0xF_FF00


def pool_stream(device_index: int) -> int:
    """The number of the stream that the CUDA graphs of this device allocate on."""
    return _FIRST + device_index


def is_pool_stream(stream: Hashable) -> bool:
    return isinstance(stream, int) and _FIRST <= stream < _FIRST + 0x100
