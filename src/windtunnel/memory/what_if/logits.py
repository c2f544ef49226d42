"""Find the cross-entropy of a recorded program: how many classes and tokens it has.

Recording ──> find_loss ──> Loss
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.events.model import Kind, Recording, Signature
from windtunnel.memory.workspace.dimensions import n_bytes_of

__all__ = ["Loss", "find_loss"]

_LOSS = "aten._log_softmax"


@dataclass(frozen=True)
class Loss:
    """A cross-entropy over many classes."""

    n_bytes: int  # of its logits, as the loss reads them
    n_classes: int
    n_rows: int


def find_loss(recording: Recording) -> Loss | None:
    """The largest log-softmax of the recording; None where there is none."""
    columns = recording.columns
    used = np.unique(columns["value"][columns["kind"] == Kind.OP]).tolist()
    losses = (loss for i in used if (loss := _loss_of(recording.signatures[i])) is not None)
    return max(losses, key=lambda loss: loss.n_bytes, default=None)


def _loss_of(signature: Signature) -> Loss | None:
    if _LOSS not in (signature.name, signature.name.rpartition(".")[0]) or not signature.inputs:
        return None
    logits = signature.inputs[0]
    if not logits.shape or not all(logits.shape):
        return None
    n_elements = int(np.prod(logits.shape, dtype=np.int64))
    return Loss(n_bytes_of(logits), logits.shape[-1], n_elements // logits.shape[-1])
