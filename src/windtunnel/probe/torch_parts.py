"""Which hooks each level needs, in the order they are put in place.

L0: modules     L1: APIs, collectives, autograd functions     mix: both     L2: kernels, and where they run
"""

from __future__ import annotations

from typing import Any

from windtunnel.probe.collector import Collector
from windtunnel.probe.debugger import Part
from windtunnel.probe.scopes import Scopes
from windtunnel.probe.torch_apis import ApiMode, OperatorNames
from windtunnel.probe.torch_backward import BackwardModes, InBackward
from windtunnel.probe.torch_calls import CallWriter
from windtunnel.probe.torch_collectives import Collectives
from windtunnel.probe.torch_custom_apis import CustomApis
from windtunnel.probe.torch_functions import FunctionUnits
from windtunnel.probe.torch_kernels import KernelMode, KernelSwitch
from windtunnel.probe.torch_mode_stack import ModeSwitch
from windtunnel.probe.torch_modules import ModuleHooks
from windtunnel.probe.torch_optimizers import OptimizerScope
from windtunnel.probe.torch_places import ApiPlaces, ModulePlaces
from windtunnel.probe.torch_threads import ThreadModes

__all__ = ["parts_for"]


def parts_for(
    level: str, collector: Collector, writer: CallWriter, scopes: Scopes, custom_apis: CustomApis
) -> list[Part]:
    """What `start` installs and `stop` removes in reverse order."""
    if level == "L2":
        return _kernels(collector, writer, scopes)
    parts: list[Part] = []
    modes: list[Any] = []
    if level in ("L0", "mix"):
        parts.append(ModuleHooks(collector, writer, scopes))
    if level in ("L1", "mix"):
        names = OperatorNames()
        mode = ApiMode(collector, writer, scopes, names)
        modes = [mode, InBackward(mode)]
        parts += [
            names,
            ModeSwitch(mode),
            ThreadModes([mode], scopes),
            BackwardModes(modes[1:]),
            FunctionUnits(collector, writer, scopes, modes),
            Collectives(collector, writer, scopes),
        ]
    if level in ("L0", "L1", "mix"):
        custom_apis.connect(collector, writer, scopes)
        custom_apis.modes = modes
        parts += [OptimizerScope(collector, scopes), custom_apis]
    return parts


def _kernels(collector: Collector, writer: CallWriter, scopes: Scopes) -> list[Part]:
    names = OperatorNames()
    places = ApiPlaces(collector, scopes, names)
    kernels = KernelMode(collector, writer, scopes)
    return [
        ModulePlaces(collector, scopes),
        names,
        ModeSwitch(places),
        OptimizerScope(collector, scopes),
        BackwardModes([InBackward(places)]),
        KernelSwitch(kernels),
        ThreadModes([places, kernels], scopes),
    ]
