"""Precision data of MindSpore programs: what every cell, API or kernel computed, forward and backward.

    from windtunnel.mindspore import PrecisionDebugger, seed_all

    debugger = PrecisionDebugger(config_path="config.json")
    for data, label in dataset:
        debugger.start(model)
        ...                     # forward, backward, optimizer
        debugger.stop()
        debugger.step()

Files and names are those of msProbe; `windtunnel compare A B` finds where two runs part.
"""

from __future__ import annotations

from windtunnel.frameworks import load
from windtunnel.probe.one_per_process import OnePerProcess, Shared

# By name, so that a Python without MindSpore is told so in a sentence.
Debugger = load("probe", "debugger", "mindspore").Debugger
MsprobeInitStep = load("probe", "callbacks", "mindspore").MsprobeInitStep
MsprobeStep = load("probe", "callbacks", "mindspore").MsprobeStep
seed_all = load("probe", "seed", "mindspore").seed_all

__all__ = ["MsprobeInitStep", "MsprobeStep", "PrecisionDebugger", "seed_all"]


class PrecisionDebugger(OnePerProcess, Debugger):
    """One per process: made again with the same arguments (or none) it is the same object."""

    current: PrecisionDebugger | None = None

    start = Shared()
    stop = Shared()
    step = Shared()
    save = Shared()
    set_init_step = Shared()
    watch = Shared()
    register_custom_api = Shared()
    restore_custom_api = Shared()
