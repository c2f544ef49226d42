"""The phase of a step that each event belongs to, as a reader understands it.

    rows of a recording ──> their phase; between backward and optimizer: AFTER_BACKWARD

A recording marks everything that is neither backward nor optimizer as forward. Reducing or clipping gradients between
the two belongs to neither pass: no part of the model runs there.
"""

from __future__ import annotations

import numpy as np

from windtunnel.events.model import Kind, Phase, Recording

__all__ = ["AFTER_BACKWARD", "phases_of"]

AFTER_BACKWARD = len(Phase) + 1  # a number of its own, after the phases and that of a recomputation


def phases_of(recording: Recording, rows: np.ndarray) -> np.ndarray:
    """The phase of each of these rows, which must be sorted."""
    phase = recording.columns["phase"][rows].astype(np.int64)
    if len(rows) == 0:
        return phase
    begins = np.flatnonzero(np.append(True, phase[1:] != phase[:-1]))
    run = phase[begins]
    is_between = np.zeros(len(run), bool)
    is_between[1:-1] = (
        (run[1:-1] == Phase.FORWARD) & (run[:-2] == Phase.BACKWARD) & (run[2:] == Phase.OPTIMIZER)
    )
    calls = np.flatnonzero(recording.columns["kind"] == Kind.MODULE_ENTER)
    for i in np.flatnonzero(is_between).tolist():
        before, after = rows[begins[i] - 1], rows[begins[i + 1]]
        if np.searchsorted(calls, before) == np.searchsorted(calls, after):
            phase[begins[i] : begins[i + 1]] = AFTER_BACKWARD
    return phase
