"""Which part of a recording is forward work done a second time, during backward (activation checkpointing)."""

from __future__ import annotations

import numpy as np

from windtunnel.events.model import Frame, Kind, Recording

__all__ = ["is_on_recomputed_stack", "is_recomputed"]


def is_recomputed(recording: Recording) -> np.ndarray:
    """Which rows are in a forward pass that is recomputed during backward."""
    columns = recording.columns
    is_edge = columns["extra"] == 1
    depth = np.cumsum(
        (is_edge & (columns["kind"] == Kind.MODULE_ENTER)).astype(np.int64)
        - (is_edge & (columns["kind"] == Kind.MODULE_EXIT))
    )
    return depth > 0


def is_on_recomputed_stack(frames: tuple[Frame, ...], frame: np.ndarray) -> np.ndarray:
    """Which frames run below torch's checkpoint recomputation."""
    inside = np.zeros(len(frames) + 1, bool)  # the last element is for frame -1
    for i, f in enumerate(frames):
        inside[i] = f.function == "recompute_fn" or (
            f.file.endswith("checkpoint.py") and "recompute" in f.function
        )
        inside[i] |= f.parent < i and inside[f.parent]
    return inside[frame]
