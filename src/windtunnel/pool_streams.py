"""Streams that allocate from memory pools of their own, as CUDA graphs do: who captures them and who models memory agree here.

An allocator's free memory belongs to a stream, so a stream that nothing else uses is a pool. It differs from an ordinary one in
that it is kept: kernels of a graph write there at the next replay.
"""

from __future__ import annotations

__all__ = ["FIRST_POOL_STREAM"]

FIRST_POOL_STREAM = 1 << 16  # the number of such a stream is this plus its device's
