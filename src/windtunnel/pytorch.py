"""Precision data from PyTorch programs: what every module, API or kernel computed, forward and backward.

    from windtunnel.pytorch import PrecisionDebugger, seed_all

    debugger = PrecisionDebugger(config_path="config.json")
    for batch in loader:
        debugger.start(model)
        ...                     # forward, backward, optimizer
        debugger.stop()
        debugger.step()

Files and names are the same as msProbe's; `windtunnel compare A B` finds where two runs diverge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.frameworks import load
from windtunnel.probe.collect.one_per_process import OnePerProcess

if TYPE_CHECKING:
    from windtunnel.probe.pytorch.callbacks import ProbeCallback
    from windtunnel.probe.pytorch.debugger import Debugger
    from windtunnel.probe.pytorch.seed import seed_all
else:  # by name, so that a Python without torch gets one sentence instead of a traceback
    ProbeCallback = load("windtunnel.probe.pytorch.callbacks", "torch").ProbeCallback
    Debugger = load("windtunnel.probe.pytorch.debugger", "torch").Debugger
    seed_all = load("windtunnel.probe.pytorch.seed", "torch").seed_all

__all__ = ["PrecisionDebugger", "ProbeCallback", "seed_all"]


class PrecisionDebugger(OnePerProcess, Debugger):
    """One per process: calling it again with the same arguments, or none, returns the same object."""

    current: PrecisionDebugger | None = None
