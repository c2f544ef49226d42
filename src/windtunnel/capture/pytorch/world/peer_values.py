"""What a collective does to values that are known: counts, shapes, flags and pickled objects.

    all_reduce(known)  ──> as if every peer held the same        (symmetry: peers run the same program)
    broadcast, scatter ──> what the root really has              (messages, see rank_messages.py)
    recv               ──> what the sender really sent           (messages)

Integers, pickled objects and host tensors are sent completely, whatever their size. Floating-point tensors on a device
have no values that a program could send: nothing is sent for them, and what arrives is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from windtunnel.capture.pytorch.kernels.known_values import (
    discard_values,
    is_floating,
    remember_values,
    values_of,
    write_parts,
)
from windtunnel.capture.pytorch.tensors.storage import CPU, sim_of, world

__all__ = [
    "bytes_of",
    "exchange",
    "fill_with",
    "gather_into",
    "is_read",
    "is_sent",
    "make_unknown",
    "put_bytes",
    "reduce_values",
    "write_values",
]  # fmt: skip

Tensor = torch.Tensor
ReduceOp = dist.ReduceOp
_SAME_FOR_EQUALS = (ReduceOp.AVG, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.BAND, ReduceOp.BOR)
_frombuffer = torch.frombuffer  # torch's own, before constructors are replaced


def write_values(tensor: Tensor, values: Tensor | None) -> None:
    """Set the values of a tensor; None: they are unknown."""
    if values is None or values.numel() != tensor.numel():
        make_unknown(tensor)
    elif sim_of(tensor) is None:
        with torch.no_grad():
            tensor.copy_(values.reshape(tensor.shape))
    else:
        remember_values(tensor, values.reshape(tensor.shape))


def make_unknown(tensor: Tensor) -> None:
    """Make the values of a tensor unknown. A real tensor gets the usual default, which is reported."""
    if sim_of(tensor) is not None:
        discard_values(tensor)
    elif tensor.numel():
        world.recorder.note_unknown("values that another rank computed on its device and sent", 1)
        with torch.no_grad():
            tensor.fill_(1)


def reduce_values(tensor: Tensor, op: Any, n_ranks: int, source: Tensor | None = None) -> None:
    """`tensor` becomes the reduction of `n_ranks` equal tensors (itself, or `source`)."""
    known = values_of(tensor if source is None else source)
    write_values(tensor, None if known is None else _reduced(known, op, n_ranks))


def _reduced(values: Tensor, op: Any, n_ranks: int) -> Tensor | None:
    if op == ReduceOp.SUM:
        return values * n_ranks
    if any(op == same for same in _SAME_FOR_EQUALS):
        return values
    if op == ReduceOp.PRODUCT:
        return values**n_ranks
    if op == ReduceOp.BXOR:
        return values if n_ranks % 2 else values ^ values
    return None


def fill_with(tensors: Sequence[Tensor], source: Tensor) -> None:
    """Every tensor becomes a copy of `source`, if the shapes are equal."""
    known = values_of(source)
    if known is None or any(tensor.shape != source.shape for tensor in tensors):
        for tensor in tensors:
            make_unknown(tensor)
    elif any(sim_of(tensor) is None for tensor in tensors):
        for tensor in tensors:
            write_values(tensor, known)
    else:
        write_parts(tensors, known)


def gather_into(output: Tensor, source: Tensor, n_ranks: int) -> None:
    """`output` becomes `source`, as many times as there are ranks."""
    known = values_of(source)
    write_values(output, None if known is None else known.reshape(-1).repeat(n_ranks))


def exchange(
    output: Tensor, source: Tensor, rank: int, n_ranks: int, output_split: Any, input_split: Any
) -> None:
    """`output` becomes what every peer sends this rank if all hold what it holds: its own part, once for each."""
    known = values_of(source)
    own = None
    if known is not None and known.numel():
        n_rows = known.shape[0] if known.dim() else 1
        is_even = _is_empty(input_split)
        sizes = [n_rows // n_ranks] * n_ranks if is_even else list(input_split)
        if sum(sizes) == n_rows and (_is_empty(output_split) or all(n == sizes[rank] for n in output_split)):
            first = sum(sizes[:rank])
            own = known.reshape(n_rows, -1)[first : first + sizes[rank]]
    write_values(output, None if own is None else own.repeat(n_ranks, 1).reshape(-1))


def _is_empty(splits: Any) -> bool:
    return splits is None or len(splits) == 0  # lists, or arrays of numpy


# -- between ranks ------------------------------------------------------------------------------------------


def is_sent(tensor: Tensor) -> bool:
    """Whether a sender sends this tensor's values; both sides decide it from what both know."""
    if not tensor.numel():
        return False
    sim = sim_of(tensor)
    return not is_floating(tensor.dtype) or sim is None or sim.device == CPU


def is_read(tensor: Tensor) -> bool:
    """Whether a receiver fetches what is sent: it would only discard weights and activations."""
    return not is_floating(tensor.dtype) or sim_of(tensor) is None


def bytes_of(tensor: Tensor) -> bytes:
    """The values as they are sent; empty if they are unknown."""
    known = values_of(tensor)
    return b"" if known is None else known.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def put_bytes(tensor: Tensor, payload: bytes) -> None:
    """Set a received tensor to what was sent; empty: the sender does not know the values either."""
    if payload:
        write_values(tensor, _frombuffer(bytearray(payload), dtype=tensor.dtype))
    else:
        make_unknown(tensor)
