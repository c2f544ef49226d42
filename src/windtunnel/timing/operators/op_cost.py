"""What an operator costs: the one answer that every source of times gives.

Roofline (a named device) ──┐
MeasuredCosts (this one) ───┴──> OpCost by signature ──> cluster.program ──> the timeline
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from windtunnel.events.model import Signature

__all__ = ["Basis", "CostSource", "HostCosts", "OpCost"]


class Basis(Enum):
    """Where a time comes from."""

    MEASURED = "measured"  # run for real on the device at hand
    MODEL = "model"  # a formula for what the operator does
    BYTES = "bytes"  # no formula is known: bounded by the bytes it moves
    FREE = "free"  # it does nothing on the device, such as a view


@dataclass(frozen=True, slots=True)
class OpCost:
    """One operator, once."""

    seconds: float  # on the device; 0 if nothing runs there
    host_seconds: float  # of the program's own thread, until it can issue the next
    basis: Basis = Basis.MODEL
    flops: int = 0
    n_bytes: int = 0  # read and written
    op_class: str = ""  # "matmul", "attention", "elementwise", ...
    spread: float = 0.0  # of a measurement: (third quartile - first) / median


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Time of the host thread besides operators."""

    module_seconds: float = 0.0  # one call of a module
    collective_seconds: float = 0.0  # to start one
    sync_seconds: float = 0.0  # to notice that the device is done


class CostSource(Protocol):
    """Costs of one device."""

    @property
    def host(self) -> HostCosts: ...

    @property
    def description(self) -> str:
        """Where the times come from, for a person: "model of h100-80gb", "measured on this machine"."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the times should know, a sentence each."""
        ...

    def cost(self, signature: Signature, *, is_backward: bool = False) -> OpCost: ...

    def fused_cost(self, n_bytes: int) -> OpCost | None:
        """One kernel that a compiler made of several operators and that moves this much; None: not known."""
        ...
