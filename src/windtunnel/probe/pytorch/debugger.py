"""PrecisionDebugger for PyTorch: the parts of each level, what a model is, and the rank of this process.

config ──> meter, elements, writer ──> parts of the level ──> `windtunnel.probe.collect.debugger` installs them

L0: modules     L1: APIs, collectives, autograd functions     mix: both     L2: kernels, and where they run
debug: values that the user saves
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from windtunnel.probe.collect.collector import Collector
from windtunnel.probe.collect.custom_apis import CustomApis as AnyCustomApis
from windtunnel.probe.collect.debugger import MODULE_LEVELS, Part
from windtunnel.probe.collect.debugger import Debugger as AnyDebugger
from windtunnel.probe.collect.saved_points import PointWriter as AnyPointWriter
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.pytorch.compile_watch import CompileWatch
from windtunnel.probe.pytorch.eager.apis import ApiMode, OperatorNames
from windtunnel.probe.pytorch.eager.autograd_functions import FunctionUnits
from windtunnel.probe.pytorch.eager.backward import BackwardModes, InBackward
from windtunnel.probe.pytorch.eager.call_writer import CallWriter
from windtunnel.probe.pytorch.eager.collectives import Collectives
from windtunnel.probe.pytorch.eager.elements import Elements
from windtunnel.probe.pytorch.eager.gradients import current_pass
from windtunnel.probe.pytorch.eager.kernel_places import ApiPlaces, ModulePlaces
from windtunnel.probe.pytorch.eager.kernels import KernelMode, KernelSwitch
from windtunnel.probe.pytorch.eager.mode_stack import ModeSwitch, hidden, is_on
from windtunnel.probe.pytorch.eager.modules import ModuleHooks, scripted_note
from windtunnel.probe.pytorch.eager.optimizers import OptimizerScope
from windtunnel.probe.pytorch.eager.tensor_meter import TorchMeter
from windtunnel.probe.pytorch.eager.threads import ThreadModes

__all__ = ["Debugger"]


class Debugger(AnyDebugger):
    """Collects what a program computes, as its config says; users see it as `windtunnel.pytorch.PrecisionDebugger`."""

    framework = "pytorch"
    model_words = "torch.nn.Module"
    custom_apis: _CustomApis

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.custom_apis = _CustomApis()
        super().__init__(*args, **kwargs)

    def build(self) -> None:
        config = self.config
        # With bench_path, calls are compared by checksum.
        summary = "md5" if config.bench_path is not None else config.summary_mode
        self.meter = TorchMeter(summary, config.precision)
        self.collector = Collector(config, self.meter.settle)
        self.elements = Elements(self.meter, config.slices, config.async_dump)
        self.writer = CallWriter(self.collector, self.elements)
        self.scopes = Scopes()
        self.points = _PointWriter(self.collector, self.elements)
        parts = _parts_for(config.level, self.collector, self.writer, self.scopes, self.custom_apis)
        recorded = [part for part in parts if isinstance(part, ModuleHooks) and config.level in MODULE_LEVELS]
        self.compiled = CompileWatch(self.collector, self.writer, self.scopes, self.version, *recorded)
        self.parts = [self.compiled, *parts]

    def is_model(self, item: Any) -> bool:
        return isinstance(item, nn.Module)

    def rank_of(self, rank_id: int | None) -> tuple[int | None, int | None]:
        if rank_id is not None:
            return rank_id, None
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return None, None

    def area_for(self, model: Any) -> str:
        note = scripted_note(model) if self.config.level in MODULE_LEVELS else None
        if note is not None:
            self.tell_once(note)
        return self.compiled.area_for(model)


def _parts_for(
    level: str, collector: Collector, writer: CallWriter, scopes: Scopes, custom_apis: _CustomApis
) -> list[Part]:
    """What `start` installs, in this order, and `stop` removes in reverse order."""
    if level == "L2":
        return _kernel_parts(collector, writer, scopes)
    parts: list[Part] = []
    modes: list[Any] = []
    if level in ("L0", "mix"):
        parts.append(ModuleHooks(collector, writer, scopes))
    if level in ("L1", "mix"):
        names = OperatorNames()
        mode = ApiMode(collector, writer, scopes, names)
        in_backward = InBackward(mode)
        modes = [mode, in_backward]
        parts += [
            names,
            ModeSwitch(mode),
            ThreadModes([mode], scopes),
            BackwardModes([in_backward]),
            FunctionUnits(collector, writer, scopes, modes),
            Collectives(collector, writer, scopes),
        ]
    if level in ("L0", "L1", "mix"):
        custom_apis.connect(collector, writer, scopes)
        custom_apis.modes = modes
        parts += [OptimizerScope(collector, scopes), custom_apis]
    return parts


def _kernel_parts(collector: Collector, writer: CallWriter, scopes: Scopes) -> list[Part]:
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


class _PointWriter(AnyPointWriter):
    """Level debug: saves single values, and their gradients if they require one."""

    def current_pass(self) -> int:
        return current_pass()

    def is_recording(self) -> bool:
        return torch.is_grad_enabled()

    def has_gradient(self, tensor: torch.Tensor) -> bool:
        return tensor.requires_grad

    def kept(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.detach().clone()

    def encode(self, pieces: list, variable: Any, entry: str, store: Any) -> None:
        with torch._C.DisableTorchFunction():
            super().encode(pieces, variable, entry, store)


class _CustomApis(AnyCustomApis):
    """Functions that the user has registered; torch's APIs inside them are not recorded."""

    modes: Sequence[Any] = ()  # those that record torch's APIs

    def is_inside(self) -> bool:
        return bool(self.modes) and not any(map(is_on, self.modes))

    def hidden(self) -> AbstractContextManager:
        return hidden(*self.modes)

    def unseen(self) -> AbstractContextManager:
        return torch._C.DisableTorchFunction()
