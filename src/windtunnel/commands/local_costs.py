"""Times of operators by running each distinct one here, in a fresh process.

recordings ──> timing.measured_here ──> MeasuredCosts
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from windtunnel.commands.request import RunRequest
from windtunnel.events.model import Recording
from windtunnel.timing import measured_here
from windtunnel.timing.measured import MeasuredCosts

__all__ = ["measure_here"]


def measure_here(
    request: RunRequest, recordings: Iterable[Recording], tell: Callable[[str], None]
) -> MeasuredCosts:
    return measured_here.measure_here(list(recordings), device=request.device.kind, tell=tell)
