"""Which module to checkpoint first: those whose activations fill the device at the peak.

RunResult ──> the tightest rank's activations by module, alike layers together ──> rows, largest first
"""

from __future__ import annotations

from typing import Any

from windtunnel.report.result import RunResult

__all__ = ["checkpoint_first"]


def checkpoint_first(result: RunResult) -> list[dict[str, Any]]:
    return []
