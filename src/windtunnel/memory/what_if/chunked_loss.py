"""What if the cross-entropy were computed a piece at a time: the same recording with smaller logits.

    Recording ──> find_loss ──> Loss ──> in_chunks ──> Recording

Chunked means that the last projection and the loss run on one slice of the tokens after the other, each slice
under activation checkpointing, so that only one slice's logits exist at a time. What else it changes is counted
too: the gradient of the projection's weight is added up slice by slice, and needs a second buffer for that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from windtunnel.events.model import Kind, Phase, Recording, Role, Signature
from windtunnel.memory.workspace.dimensions import n_bytes_of

__all__ = ["N_CHUNKS", "Loss", "find_loss", "in_chunks"]

N_CHUNKS = 8
_LOSS = "aten._log_softmax"
_LOSS_BACKWARD = "aten._log_softmax_backward_data"
_PROJECTIONS = ("aten.mm", "aten.addmm", "aten.linear", "aten.bmm")
_MOST_OF_THE_ROWS = 0.5  # labels are shifted, or padding is left out: the tensors differ a little in length


@dataclass(frozen=True)
class Loss:
    """A cross-entropy over many classes, and the storages that are as large as its logits."""

    n_classes: int
    n_rows: int
    weight_bytes: int  # of the projection that makes the logits; 0: not found
    births: np.ndarray  # ALLOC rows of the recording
    backward_births: np.ndarray  # of those, the gradient that reaches the projection


def find_loss(recording: Recording) -> Loss | None:
    """The largest log-softmax of the recording; None where there is none."""
    signatures = recording.signatures
    sizes = {
        i: (prod(s.inputs[0].shape), s.inputs[0].shape[-1])
        for i, s in enumerate(signatures)
        if _is(s, _LOSS) and s.inputs and s.inputs[0].shape
    }
    columns = recording.columns
    is_op = columns["kind"] == Kind.OP
    used = set(np.unique(columns["value"][is_op]).tolist())
    found = max((sizes[i] for i in sizes if i in used), default=None)
    if found is None or not found[1]:
        return None
    n_elements, n_classes = found
    least = n_elements * _MOST_OF_THE_ROWS
    large = {
        i: [[_is_logits(t.shape, n_classes, least) for t in part] for part in (found.inputs, found.outputs)]
        for i in used
        for found in (signatures[i],)
        if any(_is_logits(t.shape, n_classes, least) for t in (*found.inputs, *found.outputs))
    }
    births = _births(recording, large)
    last = {i: [[], outputs] for i, (_, outputs) in large.items() if _is(signatures[i], _LOSS_BACKWARD)}
    backward = np.intersect1d(_births(recording, last), births)
    weights = [
        n_bytes_of(t)
        for i in large
        if _is(signatures[i], *_PROJECTIONS)
        for t in signatures[i].inputs
        if n_classes in t.shape and len(t.shape) == 2 and prod(t.shape) < n_elements
    ]
    return Loss(n_classes, n_elements // n_classes, max(weights, default=0), births, backward)


def in_chunks(recording: Recording, loss: Loss, n_chunks: int = N_CHUNKS) -> Recording:
    """The recording with the logits, their copies and their gradients one chunk long."""
    value = recording.columns["value"].copy()
    value[loss.births] = -(-value[loss.births] // n_chunks)
    value[loss.backward_births] += loss.weight_bytes
    return replace(recording, columns={**recording.columns, "value": value})


def _is(signature: Signature, *names: str) -> bool:
    return signature.name.rpartition(".")[0] in names or signature.name in names


def _is_logits(shape: tuple[int, ...], n_classes: int, least: float) -> bool:
    return bool(shape) and shape[-1] == n_classes and prod(shape) >= least


def _births(recording: Recording, large: dict[int, list[list[bool]]]) -> np.ndarray:
    """ALLOC rows of the storages of these arguments and results: signature -> which of each are meant."""
    columns, signatures = recording.columns, recording.signatures
    # A product in backward is the gradient of the projection's weight, which may have the shape of the logits.
    products = [i for i in large if _is(signatures[i], *_PROJECTIONS)]
    is_gradient = np.isin(columns["value"], products) & (columns["phase"] == Phase.BACKWARD)
    is_op = (columns["kind"] == Kind.OP) & np.isin(columns["value"], list(large)) & ~is_gradient
    marked = (columns["kind"] == Kind.MARK) & np.isin(columns["role"], (Role.WEIGHT, Role.GRADIENT))
    rows = np.flatnonzero(is_op)
    storages: set[int] = set()
    for row in rows.tolist():
        for (offsets, ids), wanted in zip(
            (recording.inputs, recording.outputs), large[int(columns["value"][row])], strict=True
        ):
            given = ids[offsets[row] : offsets[row + 1]].tolist()
            storages.update(storage for storage, is_meant in zip(given, wanted, strict=False) if is_meant)
    storages -= set(columns["subject"][marked].tolist())
    is_alloc = columns["kind"] == Kind.ALLOC
    return np.flatnonzero(is_alloc & np.isin(columns["subject"], list(storages)))
