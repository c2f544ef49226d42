"""Precision data from MindSpore programs: what every cell, API or kernel computed, forward and backward.

    from windtunnel.mindspore import PrecisionDebugger, seed_all

    debugger = PrecisionDebugger(config_path="config.json")
    for data, label in dataset:
        debugger.start(model)
        ...                     # forward, backward, optimizer
        debugger.stop()
        debugger.step()

Files and names are the same as msProbe's; `windtunnel compare A B` finds where two runs diverge.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from windtunnel.frameworks import load
from windtunnel.msprobe_imports import module_of_names
from windtunnel.probe.collect.one_per_process import OnePerProcess

if TYPE_CHECKING:
    from windtunnel.probe.mindspore.callbacks import MsprobeInitStep, MsprobeStep
    from windtunnel.probe.mindspore.debugger import Debugger
    from windtunnel.probe.mindspore.seed import seed_all
else:  # by name, so that a Python without MindSpore gets one sentence instead of a traceback
    MsprobeInitStep = load("windtunnel.probe.mindspore.callbacks", "mindspore").MsprobeInitStep
    MsprobeStep = load("windtunnel.probe.mindspore.callbacks", "mindspore").MsprobeStep
    Debugger = load("windtunnel.probe.mindspore.debugger", "mindspore").Debugger
    seed_all = load("windtunnel.probe.mindspore.seed", "mindspore").seed_all

# msProbe's path with our name in front: `from windtunnel.mindspore.common.utils import MsprobeStep`.
common = module_of_names(f"{__name__}.common", __name__, ())
common.utils = module_of_names(  # type: ignore[attr-defined]
    f"{__name__}.common.utils", __name__, ("MsprobeInitStep", "MsprobeStep", "seed_all")
)
sys.modules |= {module.__name__: module for module in (common, common.utils)}

__all__ = ["MsprobeInitStep", "MsprobeStep", "PrecisionDebugger", "seed_all"]


class PrecisionDebugger(OnePerProcess, Debugger):
    """One per process: calling it again with the same arguments, or none, returns the same object."""

    current: PrecisionDebugger | None = None
