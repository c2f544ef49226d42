"""Streams that allocate from memory pools of their own, as CUDA graphs do: who captures them and who models memory agree here.

An allocator's free memory belongs to a stream, so a stream that nothing else uses is a pool. It differs from an ordinary one in
that it is kept: kernels of a graph write there at the next replay.
"""

from __future__ import annotations

__all__ = ["FIRST_POOL_STREAM", "is_pool"]

# The number of such a stream is this plus its device's. Streams of a script are counted from 0; those of a memory snapshot are
# addresses, none of which is in the first megabyte.
FIRST_POOL_STREAM = 1 << 16
_MOST_DEVICES = 1 << 12


def is_pool(stream: object) -> bool:
    """Whether the memory of this stream is kept."""
    return isinstance(stream, int) and FIRST_POOL_STREAM <= stream < FIRST_POOL_STREAM + _MOST_DEVICES
