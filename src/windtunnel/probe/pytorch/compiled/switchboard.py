"""Compiled code of one debugger: whether there is any, the folder for it, and the parts that collect it.

start(model) ──> compiled modules in it? ──> pynative/step… for eager code, graph/step… for what runs in graphs
             └─> L0, mix: modules in graphs   L1, mix: each compiled call as one   L2: each generated kernel
"""

from __future__ import annotations

import os
import threading
from typing import Any

import torch
from torch import nn

from windtunnel.probe.collect.collector import Collector, StepOutput
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.pytorch.compiled.inductor_kernels import InductorKernels
from windtunnel.probe.pytorch.compiled.modules import CompiledModuleHooks, is_wrapper
from windtunnel.probe.pytorch.compiled.regions import CompiledRegions
from windtunnel.probe.pytorch.eager.calls import CallWriter
from windtunnel.probe.pytorch.eager.modules import ModuleHooks

__all__ = ["CompiledCode"]


class CompiledCode:
    """A part of the debugger, installed while collecting."""

    def __init__(self, collector: Collector, writer: CallWriter, scopes: Scopes, version: str) -> None:
        self.collector = collector
        self.version = version
        self.area = ""  # folder of eager code below dump_path: "pynative" once compiled code is known
        level = collector.config.level
        self.modules = (
            CompiledModuleHooks(collector, writer, scopes, self.graph_step)
            if level in ("L0", "mix")
            else None
        )
        has_jit = level in ("L1", "mix")
        self.regions = CompiledRegions(collector, writer, scopes, self.modules, has_jit)
        self.kernels = (
            InductorKernels(collector, writer, self.regions, self.graph_step) if level == "L2" else None
        )
        self._is_decided = level == "debug"
        self._graph: StepOutput | None = None
        self._lock = threading.Lock()

    def connected(self, parts: list[Any]) -> list[Any]:
        """The parts of a level with those for compiled code: hooks of modules that a compiler can trace, and this."""
        return [self.modules if type(part) is ModuleHooks else part for part in parts] + [self]

    def decide(self, model: Any) -> None:
        """At the first start: the folders of a run are the same in all its steps."""
        if not self._is_decided:
            self._is_decided = True
            self.area = "pynative" if has_compiled(model) else ""

    def graph_step(self) -> StepOutput | None:
        """The output for what runs inside graphs; created when there is something to write."""
        if self._graph is None:
            with self._lock:
                self._graph = self._graph or self._open_graph()
        return self._graph

    def _open_graph(self) -> StepOutput | None:
        step = self.collector.step
        if step is None:
            return None
        config, place = self.collector.config, step.folder.path
        folder = config.dump_path / "graph" / place.parent.name / place.name
        wants_tensors = config.task in ("tensor", "overflow_check") or bool(config.tensor_list)
        graph = StepOutput(config, folder, self.version, wants_tensors)
        # One count for both: a module that runs in a graph and outside has no number twice.
        graph.counts, graph.lock = step.counts, step.lock
        return graph

    def install(self, model: Any = None) -> None:
        self.regions.install(model)
        if self.kernels is not None:
            self.kernels.install(model)

    def remove(self) -> None:
        if self.kernels is not None:
            self.kernels.remove()
        self.regions.remove()
        if self._graph is not None:
            self.collector.settle()
            self._graph.store.drain()
            self._graph.folder.flush()

    def end_step(self) -> None:
        graph, self._graph = self._graph, None
        if self.kernels is not None:
            self.kernels.end_step()
        if graph is not None:
            self.collector.settle()
            self._name_by_rank(graph)
            graph.is_open = False
            graph.store.drain()
            graph.folder.close()

    @staticmethod
    def _name_by_rank(graph: StepOutput) -> None:
        """Rename proc{pid} to rank{R} if the process group was created after the folder."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            path = graph.folder.path
            if path.name == f"proc{os.getpid()}":
                graph.rename(path.with_name(f"rank{distributed.get_rank()}"))


def has_compiled(model: Any) -> bool:
    """Whether a model is compiled, or a module in it."""
    models = [] if model is None else [model] if isinstance(model, nn.Module) else list(model)
    return any(
        is_wrapper(module) or module._compiled_call_impl is not None
        for root in models
        for module in root.modules()
    )
