"""An array's values in C order, in blocks that stay in a core's second-level cache.

array of any strides ──> contiguous blocks of at most n elements (views where it is contiguous, else one reused copy)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

__all__ = ["c_order_blocks"]


def c_order_blocks(array: np.ndarray, n: int) -> Iterator[np.ndarray]:
    """Yield one-dimensional blocks of n elements, the last one shorter; a block is valid until the next is asked for.

    Never holds more than one block, so an expanded array (stride 0) costs no memory.
    """
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        for start in range(0, flat.size, n):
            yield flat[start : start + n]
        return
    block, filled = np.empty(min(n, array.size), array.dtype), 0
    for piece in _pieces(array, block.size):
        block[filled : filled + piece.size].reshape(piece.shape)[...] = piece
        filled += piece.size
        if filled == block.size:
            yield block
            filled = 0
    if filled:
        yield block[:filled]


def _pieces(array: np.ndarray, n: int) -> Iterator[np.ndarray]:
    """Cut an array into sub-arrays, in C order, so that their sizes fill blocks of n exactly."""
    room = n
    todo = [array]  # last one first
    while todo:
        part = todo.pop()
        if part.size > room:
            inner = part.size // part.shape[0]
            whole = room // inner
            if not whole:
                todo += [part[1:], part[0]] if len(part) > 1 else [part[0]]
                continue
            todo.append(part[whole:])
            part = part[:whole]
        yield part
        room = room - part.size or n
