"""PrecisionDebugger for PyTorch: its parts, what a model is, and who this process is.

config ──> meter, elements, writer ──> parts of the level ──> `windtunnel.probe.debugger` puts them in place
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from windtunnel.probe.collector import Collector
from windtunnel.probe.debugger import MODULE_LEVELS
from windtunnel.probe.debugger import Debugger as AnyDebugger
from windtunnel.probe.scopes import Scopes
from windtunnel.probe.torch_calls import CallWriter
from windtunnel.probe.torch_compiled import CompiledCode
from windtunnel.probe.torch_custom_apis import CustomApis
from windtunnel.probe.torch_elements import Elements
from windtunnel.probe.torch_modules import scripted_note
from windtunnel.probe.torch_parts import parts_for
from windtunnel.probe.torch_points import PointWriter
from windtunnel.probe.torch_statistics import TorchMeter

__all__ = ["Debugger"]


class Debugger(AnyDebugger):
    """Collects what a program computes, as its config says. `windtunnel.pytorch.PrecisionDebugger` is its face."""

    framework = "pytorch"
    model_words = "torch.nn.Module"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.custom_apis = CustomApis()
        super().__init__(*args, **kwargs)

    def build(self) -> None:
        config = self.config
        summary = "md5" if config.bench_path is not None else config.summary_mode  # found by checksum
        self.meter = TorchMeter(summary, config.precision)
        self.collector = Collector(config, self.meter.settle)
        self.elements = Elements(self.meter, config.slices, config.async_dump)
        self.writer = CallWriter(self.collector, self.elements)
        self.scopes = Scopes()
        self.points = PointWriter(self.collector, self.elements)
        parts = parts_for(config.level, self.collector, self.writer, self.scopes, self.custom_apis)
        self.compiled = CompiledCode(self.collector, self.writer, self.scopes, self.version)
        self.parts = self.compiled.connected(parts)

    def is_model(self, item: Any) -> bool:
        return isinstance(item, nn.Module)

    def rank_of(self, rank_id: int | None) -> tuple[int | None, int | None]:
        if rank_id is not None:
            return rank_id, None
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return None, None

    def area_for(self, model: Any) -> str:
        self.compiled.decide(model)
        note = scripted_note(model) if self.config.level in MODULE_LEVELS else None
        if note is not None:
            self.tell_once(note)
        return self.compiled.area
