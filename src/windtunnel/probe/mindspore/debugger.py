"""PrecisionDebugger for MindSpore: the parts of each level, what a model is, and the rank of this process.

config ──> meter, elements, writer ──> parts of the level ──> `windtunnel.probe.collect.debugger` installs them

L0: cells     L1: APIs, primitives, compiled functions     mix: both     L2: kernels, and the cells they run in
debug: values that the user saves
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn
from mindspore.communication import GlobalComm, get_group_size, get_rank
from mindspore.graph.api import _pynative_executor

from windtunnel.mocking import is_dry_run
from windtunnel.probe.collect.collector import Collector
from windtunnel.probe.collect.custom_apis import CustomApis as AnyCustomApis
from windtunnel.probe.collect.debugger import Debugger as AnyDebugger
from windtunnel.probe.collect.debugger import Part
from windtunnel.probe.collect.saved_points import PointWriter as AnyPointWriter
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.mindspore.graph.compilers import is_graph_mode
from windtunnel.probe.mindspore.graph.graphs import GraphCode
from windtunnel.probe.mindspore.graph.jit import JitCalls
from windtunnel.probe.mindspore.graph.kernels import KernelDump
from windtunnel.probe.mindspore.graph.step_watch import StepWatch
from windtunnel.probe.mindspore.pynative.apis import ApiStandIns
from windtunnel.probe.mindspore.pynative.call_writer import CallWriter
from windtunnel.probe.mindspore.pynative.cells import CellHooks
from windtunnel.probe.mindspore.pynative.elements import Elements
from windtunnel.probe.mindspore.pynative.errors import MindSporeCollector
from windtunnel.probe.mindspore.pynative.gradients import current_pass
from windtunnel.probe.mindspore.pynative.kernels import CellPlaces, KernelMode
from windtunnel.probe.mindspore.pynative.primitives import Primitives
from windtunnel.probe.mindspore.pynative.reentry import Quiet
from windtunnel.probe.mindspore.pynative.tensor_meter import MindSporeMeter

__all__ = ["Debugger"]


class Debugger(AnyDebugger):
    """Collects what a program computes, as its config says; users see it as `windtunnel.mindspore.PrecisionDebugger`."""

    framework = "mindspore"
    model_words = "mindspore.nn.Cell"
    latest: Debugger | None = None  # for callbacks that are not given one
    custom_apis: _CustomApis
    kernels: KernelDump | None  # MindSpore's own dump, for kernels that only it can see

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.custom_apis = _CustomApis()
        self._steps = StepWatch(lambda: self.safely(self._next_step))
        self._rank_id: int | None = None
        super().__init__(*args, **kwargs)
        Debugger.latest = self

    def start(  # type: ignore[override]  # scheduled_tokens is for vLLM, which runs on torch
        self, model: Any = None, token_range: Sequence[int] | None = None, rank_id: int | None = None
    ) -> None:
        """Begin to collect; does nothing in steps and ranks that the config excludes.

        Without a model, the one given last is used.
        """
        model = self.last_model if model is None else model
        self._check(model, token_range, rank_id)  # before anything looks at the model
        if not is_dry_run():
            self.safely(lambda: self._prepare(model))
        super().start(model, token_range, rank_id)
        if self.config.level == "L2" and token_range is None:
            self._rank_id = rank_id
            self._steps.install()

    def stop(self) -> None:
        """Stop collecting; what was collected is in valid files afterwards."""
        super().stop()
        self._steps.remove()

    def step(self) -> None:
        """End the step: complete its files and reset the counters."""
        super().step()
        self._steps.user_step()

    def _next_step(self) -> None:
        """The program began another step without saying so: one start may be around a whole training at L2."""
        super().step()
        self.start(self.last_model, None, self._rank_id)

    def _prepare(self, model: Any) -> None:
        """Prepare for compiled code in every step: the first step compiles, whichever steps are collected."""
        self.graph.prepare(model)
        kernels = self.kernels
        if self.config.level == "L2" and kernels is None:
            kernels = self.kernels = KernelDump(
                self.collector
            )  # also for compiled functions in PyNative mode
            sees_all = is_graph_mode() or _is_ascend()
            self.parts = [kernels] if sees_all else [*self.parts, kernels]
        if kernels is not None:
            kernels.prepare(model, self.step_number)

    def step_over(self) -> None:
        step = self.collector.step
        super().step_over()
        if step is not None and self.parts == [self.kernels]:
            _remove_empty(step.folder.path)

    def close(self) -> None:
        """Complete all open files; called automatically at exit."""
        super().close()
        self.safely(self.graph.close)
        if self.kernels is not None:
            self.safely(self.kernels.close)
            if any(self.config.dump_path.glob("rank_*/Net")):
                self.tell_once(f"kernels of compiled code are in {self.config.dump_path}/rank_*/Net")

    def build(self) -> None:
        config = self.config
        # With bench_path, calls are compared by checksum.
        summary = "md5" if config.bench_path is not None else config.summary_mode
        self.meter = MindSporeMeter(summary, config.precision)
        self.collector = MindSporeCollector(config, self.meter.settle)
        self.elements = Elements(self.meter, config.slices, config.async_dump)
        self.writer = CallWriter(self.collector, self.elements)
        self.scopes = Scopes()
        self.points = _PointWriter(self.collector, self.elements)
        self.graph = GraphCode(self.collector, self.version)
        self.kernels = None
        self.parts = _parts_for(
            config.level, self.collector, self.writer, self.scopes, self.custom_apis, self.graph
        )

    def is_model(self, item: Any) -> bool:
        return isinstance(item, nn.Cell)

    def area_for(self, model: Any) -> str:
        return self.graph.area

    def renamed(self, name: str) -> None:
        self.graph.rename(name)

    def rank_of(self, rank_id: int | None) -> tuple[int | None, int | None]:
        if rank_id is not None:
            return rank_id, None
        if GlobalComm.INITED:
            return get_rank(), get_group_size()
        return None, None


def _parts_for(
    level: str,
    collector: Collector,
    writer: CallWriter,
    scopes: Scopes,
    custom_apis: _CustomApis,
    graph: GraphCode,
) -> list[Part]:
    """What `start` installs, in this order, and `stop` removes in reverse order."""
    quiet = Quiet()
    parts: list[Part] = []
    if level in ("L0", "mix"):
        parts.append(CellHooks(collector, writer, scopes, quiet, graph.handles))
    if level in ("L1", "mix"):
        apis = ApiStandIns(collector, writer, scopes, quiet, lambda: custom_apis.places)
        parts += [Primitives(apis), apis, JitCalls(apis)]
    if level in ("L0", "L1", "mix"):
        custom_apis.quiet = quiet
        custom_apis.connect(collector, writer, scopes)
        parts += [custom_apis, graph]
    if level == "L2":
        places = CellPlaces(collector, writer, scopes, quiet, graph.handles)
        parts += [places, KernelMode(collector, writer, scopes, quiet)]
    return parts


class _PointWriter(AnyPointWriter):
    """Level debug: saves single values, and their gradients inside a differentiated function."""

    def current_pass(self) -> int:
        return current_pass()

    def is_recording(self) -> bool:
        return _pynative_executor.requires_grad()

    def has_gradient(self, tensor: Tensor) -> bool:
        return tensor._grad_node is not None

    def kept(self, gradient: Tensor) -> Tensor:
        return Tensor(np.array(gradient.asnumpy()))


class _CustomApis(AnyCustomApis):
    """Functions that the user has registered; MindSpore's APIs inside them are not recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet = Quiet()

    def is_inside(self) -> bool:
        return self.quiet.depth > 0

    def hidden(self) -> AbstractContextManager:
        return self.quiet

    def unseen(self) -> AbstractContextManager:
        return self.quiet


def _remove_empty(folder: Path) -> None:
    """Remove a step folder whose data is all in MindSpore's own dump; a folder with an error log stays."""
    with suppress(OSError):
        for name in ("dump.json", "stack.json", "construct.json"):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
        folder.parent.rmdir()


def _is_ascend() -> bool:
    return mindspore.get_context("device_target") == "Ascend"
