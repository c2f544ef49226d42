"""Compiled code of one debugger: the folder for what runs in graphs, and the parts that collect it.

something is compiled ──> pynative/step… for eager code, graph/step… for what runs in graphs
                      └─> L0, mix: modules in graphs   L1, mix: each compiled call as one   L2: each generated kernel
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from windtunnel.probe.collect.collector import Collector, StepOutput
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.pytorch.compiled.inductor_kernels import InductorKernels
from windtunnel.probe.pytorch.compiled.modules import TraceableHooks
from windtunnel.probe.pytorch.compiled.regions import CompiledRegions
from windtunnel.probe.pytorch.eager.call_writer import CallWriter
from windtunnel.probe.pytorch.eager.modules import ModuleHooks

__all__ = ["CompiledCode"]


class CompiledCode:
    """A part of the debugger, installed while collecting."""

    def __init__(
        self,
        collector: Collector,
        writer: CallWriter,
        scopes: Scopes,
        version: str,
        modules: ModuleHooks | None,
    ) -> None:
        self.collector = collector
        self.version = version
        traceable = None if modules is None else TraceableHooks(modules, writer, self.graph_step)
        if modules is not None and traceable is not None:
            modules.make_traceable(traceable)
        level = collector.config.level
        has_jit = level in ("L1", "mix")
        self.regions = CompiledRegions(collector, writer, scopes, traceable, has_jit)
        self.kernels = (
            InductorKernels(collector, writer, self.regions, self.graph_step) if level == "L2" else None
        )
        self._graph: StepOutput | None = None
        self._lock = threading.Lock()

    def enter(self, context: Any) -> Callable[[], None]:
        """A compiled call begins that was entered before this was installed; returns what to call when it ends."""
        return self.regions.enter(context)

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
