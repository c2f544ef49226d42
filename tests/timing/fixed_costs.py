"""Costs that a test sets itself, and recordings of a few operators."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Event, Frame, Recording, Signature
from windtunnel.timing.operators.op_cost import HostCosts, OpCost

__all__ = ["FixedCosts", "recording_of"]


@dataclass
class FixedCosts:
    """By the operator's name; backward takes `backward_factor` as long on the host."""

    known: Mapping[str, OpCost]
    host: HostCosts = field(default_factory=HostCosts)
    backward_factor: float = 1.0
    fused: OpCost | None = None
    description: str = "made up"
    notes: tuple[str, ...] = ()
    asked: list[tuple[str, bool]] = field(default_factory=list)

    def cost(self, signature: Signature, *, is_backward: bool = False) -> OpCost:
        self.asked.append((signature.name, is_backward))
        found = self.known[signature.name]
        return (
            replace(found, host_seconds=found.host_seconds * self.backward_factor) if is_backward else found
        )

    def fused_cost(self, n_bytes: int) -> OpCost | None:
        return replace(self.fused, n_bytes=n_bytes) if self.fused is not None else None


def recording_of(
    events: Iterable[Event],
    signatures: Sequence[Signature],
    names: Sequence[str] = (),
    frames: Sequence[Frame] = (),
    **footer: Any,
) -> Recording:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r"
        record_events(path, events, names, signatures, frames)
        return replace(read_recording(path), footer=footer)
