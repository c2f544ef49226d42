"""Which part of a tensor is collected when the config asks for a slice.

[{"dim": 0, "size": 8, "begin": 2, "end": 4}] ──> Slice ──> tensor_index(slices, shape) ──> (slice(2, 4), ...)
request "b" of {"a": 3, "b": 2} tokens ──> request_slice ──> Slice(dim=0, size=5, begin=3, end=5)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Slice", "request_slice", "tensor_index"]


@dataclass(frozen=True, slots=True)
class Slice:
    """`begin:end` along one dimension of every tensor whose size there is `size` (None: any size)."""

    dim: int = 0
    size: int | None = None
    begin: int = 0
    end: int | None = None


def tensor_index(slices: Sequence[Slice], shape: Sequence[int]) -> tuple[slice, ...] | None:
    """Return what to index a tensor of this shape with, or None when no slice applies to it."""
    found = {
        piece.dim: slice(piece.begin, piece.end)
        for piece in slices
        if piece.dim < len(shape) and piece.size in (None, shape[piece.dim])
    }
    if not found:
        return None
    return tuple(found.get(dim, slice(None)) for dim in range(len(shape)))


def request_slice(request_id: str, scheduled_tokens: Mapping[str, int]) -> Slice | None:
    """Return the tokens of one request in a batch that serves several, or None when it is not among them."""
    begin = 0
    found = None
    for request, n_tokens in scheduled_tokens.items():
        if request == request_id:
            found = (begin, begin + n_tokens)
        begin += n_tokens
    return Slice(dim=0, size=begin, begin=found[0], end=found[1]) if found else None
