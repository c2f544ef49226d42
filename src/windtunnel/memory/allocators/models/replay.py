"""Run a whole sequence of requests through an allocator.

columns (kind, id, bytes, stream) ──> alloc, free, … ──> the allocator, with its peaks
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from windtunnel.memory.allocators.interface import Allocator

__all__ = ["ALLOC", "EMPTY_CACHE", "FREE", "RECORD_STREAM", "STREAM_DONE", "replay_columns"]

ALLOC, FREE, RECORD_STREAM, STREAM_DONE, EMPTY_CACHE = range(5)


def replay_columns(
    allocator: Allocator,
    kinds: Sequence[int],
    ids: Sequence[Hashable],
    sizes: Sequence[int],
    streams: Sequence[int],
) -> None:
    """Feed four equally long columns to `allocator`. Lists are read faster than arrays.

    Stops at the first PredictedOutOfMemory, with the allocator as it was left by it.
    """
    alloc, free = allocator.alloc, allocator.free
    for kind, id, n_bytes, stream in zip(kinds, ids, sizes, streams, strict=True):
        if kind == ALLOC:
            alloc(id, n_bytes, stream)
        elif kind == FREE:
            free(id)
        elif kind == RECORD_STREAM:
            allocator.record_stream(id, stream)
        elif kind == STREAM_DONE:
            allocator.stream_done(stream)
        elif kind == EMPTY_CACHE:
            allocator.empty_cache()
