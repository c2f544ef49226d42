"""Memory of the parts of a step: a rollout, a reference's forward pass, the update.

    PART rows + played tape ──> PartMemory: the peak in each part, and what is left after it

Running out of memory in reinforcement learning is about what stays reserved between the parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.events.model import Kind, Phase, Recording
from windtunnel.memory.peak import Replay
from windtunnel.memory.tape import AllocationTape

__all__ = ["PartMemory", "memory_of_parts"]

_FIRST, _BETWEEN, _TRAINING = "building", "between", "training"


@dataclass(frozen=True, slots=True)
class PartMemory:
    """One part of the step; of several times the highest figure each."""

    part: str
    times: int
    peak_bytes: int
    peak_with_fragments_bytes: int
    left_bytes: int  # allocated when the next part begins
    left_with_fragments_bytes: int  # reserved then


def memory_of_parts(recording: Recording, tape: AllocationTape, played: Replay) -> tuple[PartMemory, ...]:
    """In the order in which the parts were first met; () for a program without parts."""
    rows = np.flatnonzero(recording.columns["kind"] == Kind.PART)
    if len(rows) == 0 or len(tape) == 0:
        return ()
    names = [recording.name(int(name)) or _BETWEEN for name in recording.columns["subject"][rows]]
    before = recording.columns["phase"][: rows[0]]
    names.insert(0, _TRAINING if (before == Phase.BACKWARD).any() else _FIRST)
    borders = [0, *np.searchsorted(tape.event, rows).tolist(), len(tape)]
    found: dict[str, PartMemory] = {}
    for name, begin, end in zip(names, borders[:-1], borders[1:], strict=True):
        if end == 0:
            continue  # nothing was allocated yet
        # What is held when a part begins is part of its peak, even if it only frees.
        span, last = slice(max(begin - 1, 0), max(end, begin)), max(end, begin) - 1
        known = found.get(name, PartMemory(name, 0, 0, 0, 0, 0))
        found[name] = PartMemory(
            name,
            known.times + 1,
            max(known.peak_bytes, int(played.allocated[span].max())),
            max(known.peak_with_fragments_bytes, int(played.reserved[span].max())),
            max(known.left_bytes, int(played.allocated[last])),
            max(known.left_with_fragments_bytes, int(played.reserved[last])),
        )
    return tuple(found.values())
