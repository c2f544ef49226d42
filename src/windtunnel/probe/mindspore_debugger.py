"""PrecisionDebugger for MindSpore: its parts, what a model is, and who this process is.

config ──> meter, elements, writer ──> parts of the level ──> `windtunnel.probe.debugger` puts them in place
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import mindspore
from mindspore import nn
from mindspore.communication import GlobalComm, get_group_size, get_rank

from windtunnel.probe.debugger import Debugger as AnyDebugger
from windtunnel.probe.mindspore_calls import CallWriter
from windtunnel.probe.mindspore_custom_apis import CustomApis
from windtunnel.probe.mindspore_elements import Elements
from windtunnel.probe.mindspore_errors import HonestCollector
from windtunnel.probe.mindspore_graph import GraphCode
from windtunnel.probe.mindspore_graph_compilers import is_graph_mode
from windtunnel.probe.mindspore_graph_kernels import KernelDump
from windtunnel.probe.mindspore_parts import parts_for
from windtunnel.probe.mindspore_points import PointWriter
from windtunnel.probe.mindspore_statistics import MindSporeMeter
from windtunnel.probe.scopes import Scopes

__all__ = ["Debugger"]


class Debugger(AnyDebugger):
    """Collects what a program computes, as its config says. `windtunnel.mindspore.PrecisionDebugger` is its face."""

    framework = "mindspore"
    model_words = "mindspore.nn.Cell"
    latest: Debugger | None = None  # for callbacks that are not given one

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.custom_apis = CustomApis()
        super().__init__(*args, **kwargs)
        Debugger.latest = self

    def start(
        self, model: Any = None, token_range: Sequence[int] | None = None, rank_id: int | None = None
    ) -> None:
        """Begin to collect; nothing happens in steps and ranks that the config leaves out.

        Without a model the one that was given last is meant.
        """
        model = self.last_model if model is None else model
        self._check(model, token_range, rank_id)  # before anything looks at the model
        self.safely(lambda: self._prepare(model))
        super().start(model, token_range, rank_id)

    def _prepare(self, model: Any) -> None:
        """What compiled code needs, wanted or not: the first step compiles, whichever steps are collected."""
        self.graph.prepare(model)
        if self.config.level == "L2" and self.kernels is None:
            self.kernels = KernelDump(self.collector)  # also of what is compiled in dynamic code
            sees_all = is_graph_mode() or _is_ascend()
            self.parts = [self.kernels] if sees_all else [*self.parts, self.kernels]
        if self.kernels is not None:
            self.kernels.prepare(model, self.step_number)

    def step_over(self) -> None:
        step = self.collector.step
        super().step_over()
        if step is not None and self.parts == [self.kernels]:
            _remove_empty(step.folder.path)

    def close(self) -> None:
        """Finish whatever is open; at exit this comes by itself."""
        super().close()
        self.safely(self.graph.close)
        if self.kernels is not None:
            self.safely(self.kernels.close)
            if any(self.config.dump_path.glob("rank_*/Net")):
                self.tell_once(f"kernels of compiled code are in {self.config.dump_path}/rank_*/Net")

    def build(self) -> None:
        config = self.config
        summary = "md5" if config.bench_path is not None else config.summary_mode  # found by checksum
        self.meter = MindSporeMeter(summary, config.precision)
        self.collector = HonestCollector(config, self.meter.settle)
        self.elements = Elements(self.meter, config.slices, config.async_dump)
        self.writer = CallWriter(self.collector, self.elements)
        self.scopes = Scopes()
        self.points = PointWriter(self.collector, self.elements)
        self.graph = GraphCode(self.collector, self.version)
        self.kernels: KernelDump | None = None  # MindSpore's own dump, where only that can see them
        self.parts = parts_for(
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


def _remove_empty(folder: Path) -> None:
    """The folder of a step of which MindSpore's own dump has everything, elsewhere; errors of ours stay."""
    with suppress(OSError):
        for name in ("dump.json", "stack.json", "construct.json"):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
        folder.parent.rmdir()


def _is_ascend() -> bool:
    return mindspore.get_context("device_target") == "Ascend"
