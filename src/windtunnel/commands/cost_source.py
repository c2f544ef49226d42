"""Where the times of operators come from: measured here, or the model of a named device.

RunRequest, recordings ──> --device cpu or --measure: run each distinct operator for real ──┐
                       └──> a named device: Roofline ──────────────────────────────────────┴──> CostSource
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from windtunnel.commands.local_costs import measure_here
from windtunnel.commands.request import RunRequest
from windtunnel.events.model import Recording
from windtunnel.timing.op_cost import CostSource
from windtunnel.timing.roofline import Roofline

__all__ = ["cost_source"]


def cost_source(
    request: RunRequest, recordings: Iterable[Recording], tell: Callable[[str], None]
) -> CostSource:
    if request.is_measuring or request.device.kind == "cpu":
        return measure_here(request, recordings, tell)
    return Roofline(request.device)
