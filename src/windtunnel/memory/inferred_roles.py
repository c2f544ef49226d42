"""What a storage is (activation, gradient, optimizer state, temporary) where nothing says so: from when it lives.

phase of its allocation, rows of its allocation and free ──> infer_roles ──> Role
"""

from __future__ import annotations

import numpy as np

from windtunnel.events.model import Kind, Phase, Role

__all__ = ["NEVER", "infer_roles"]

NEVER = np.iinfo(np.int64).max  # the row of a free that does not happen


def infer_roles(
    role: np.ndarray, phase: np.ndarray, birth: np.ndarray, death: np.ndarray, columns: dict[str, np.ndarray]
) -> np.ndarray:
    """Settle the roles that are unknown; one element per allocation, `birth` and `death` are rows.

    Made in the forward pass (or by a checkpoint's recomputation) and alive in a later backward: an activation. Made in
    the backward pass and alive at the optimizer step: a gradient. Made by the optimizer and alive in the next pass:
    optimizer state. All else is temporary.
    """
    kind = columns["kind"]
    happens = (kind == Kind.OP) | (kind == Kind.ALLOC) | (kind == Kind.MODULE_ENTER)

    def lives_to_see(rows: np.ndarray) -> np.ndarray:
        padded = np.append(rows, NEVER)
        return padded[np.searchsorted(rows, birth, side="right")] < death

    in_phase = {p: np.flatnonzero(happens & (columns["phase"] == p)) for p in Phase}
    unknown = role == Role.UNKNOWN
    stepping = np.union1d(in_phase[Phase.OPTIMIZER], np.flatnonzero(kind == Kind.STEP))
    verdicts = (
        (Phase.FORWARD, in_phase[Phase.BACKWARD], Role.ACTIVATION),
        (Phase.BACKWARD, stepping, Role.GRADIENT),
        (Phase.OPTIMIZER, in_phase[Phase.FORWARD], Role.OPTIMIZER),
    )
    settled = np.where(unknown, np.uint8(Role.TEMPORARY), role)
    for born, rows, verdict in verdicts:
        settled[unknown & (phase == born) & lives_to_see(rows)] = verdict
    return settled
