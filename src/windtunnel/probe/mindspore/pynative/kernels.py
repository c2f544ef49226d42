"""Level L2 in PyNative mode: every operator that MindSpore runs, observed by its dispatch mode, forward and backward.

    MatMul, BiasAdd, ... ──> mode ──> "Kernel.MatMul.0.forward"     its parent: the cell it runs in

An operator is what MindSpore sends to a device: one API can be several. This works on every device target; what only an
Ascend's own dump can see (the kernels of compiled graphs) is in `mindspore.graph.kernels`.
"""

from __future__ import annotations

from typing import Any

from mindspore._c_expression import _DispatchGuardStack
from mindspore.graph.api import _pynative_executor
from mindspore.ops.primitive import Primitive
from mindspore.utils import MsDispatchMode

from windtunnel.probe.collect.collector import Collector, StepOutput
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.mindspore.pynative.call_writer import CallWriter
from windtunnel.probe.mindspore.pynative.cells import CellHooks
from windtunnel.probe.mindspore.pynative.reentry import Quiet

__all__ = ["CellPlaces", "KernelMode"]


class KernelMode(MsDispatchMode):
    """A part of the debugger: records the operators that run while it is installed."""

    def __init__(self, collector: Collector, writer: CallWriter, scopes: Scopes, quiet: Quiet) -> None:
        self.collector = collector
        self.writer = writer
        self.scopes = scopes
        self.quiet = quiet
        self.is_on = False
        self._depth = 0  # of the stack of modes with ours on top; 0: not on it

    def install(self, model: Any = None) -> None:
        self.is_on = True
        if not self._depth:
            self.__enter__()
            self._depth = _DispatchGuardStack.depth()

    def remove(self) -> None:
        """A mode that the program has entered since stays above ours, which then does nothing until the program ends."""
        self.is_on = False
        if self._depth and _DispatchGuardStack.depth() == self._depth:
            self.__exit__(None, None, None)
            self._depth = 0

    def end_step(self) -> None:
        """Nothing is left after stop."""

    def __ms_dispatch__(self, func: Any, args: tuple, kwargs: dict | None = None) -> Any:
        step = self.collector.step
        if not self.is_on or step is None or self.quiet.depth or self.scopes.is_quiet:
            return func(*args, **kwargs or {})
        with self.quiet:
            call = None
            try:
                call = self._begin(step, func.name, _inputs(args), kwargs or {})
            except Exception as error:
                self.collector.guard(f"the inputs of {func.name}", error)
            result = func(*args, **kwargs or {})
            if call is not None:
                try:
                    self._end(call, result)
                except Exception as error:
                    self.collector.guard(f"the outputs of {func.name}", error)
            return result

    def _begin(self, step: StepOutput, operator: str, args: tuple, kwargs: dict) -> tuple | None:
        way = "backward" if _pynative_executor.get_current_autodiff_engine_id() >= 0 else "forward"
        writer = self.writer
        if not (writer.has_backward if way == "backward" else writer.has_forward):
            return None
        # Counted apart: forward numbers stay the same whether or not a backward ran in between.
        name = f"Kernel.{operator}"
        entry = f"{name}.{step.number(f'{name}.{way}')}.{way}"
        parents = () if way == "backward" else tuple(self.scopes.stack)
        if not self.collector.selection.wants(entry, parents):
            return None
        pieces: list = []
        if writer.finder is not None:
            args, kwargs = writer.finder.inputs(entry, args, kwargs)
        elif writer.has_input:
            writer.elements.inputs(pieces, entry, args, kwargs, writer.store_for(step, entry))
        return step, entry, parents, pieces, (args, kwargs)

    def _end(self, call: tuple, result: Any) -> None:
        step, entry, parents, pieces, (args, kwargs) = call
        writer = self.writer
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        if not any(True for _ in writer.words.tensors_in(outputs)):
            return  # a question about shapes, no kernel
        store = writer.store_for(step, entry)
        if writer.finder is not None:
            if not writer.finder.found(entry, (args, kwargs), outputs):
                return
            store = step.store
            writer.elements.inputs(pieces, entry, args, kwargs, store)
        if writer.has_output:
            pieces.append(', "output": ' if pieces else '"output": ')
            writer.elements.listed(pieces, outputs, f"{entry}.output", store)
        has_frames = writer.has_stacks and entry.endswith(".forward")
        frames = self.collector.stacks.here() if has_frames else None
        above = None
        for name in parents:
            step.folder.add_parent(name, above)
            above = name
        self.collector.put(step, entry, ["{", *pieces, "}"], frames, above, True)


class CellPlaces(CellHooks):
    """Hooks that say which cell runs, and record nothing."""

    def _begin(self, name: str, cell: Any, args: tuple, kwargs: dict) -> None:
        step = self.collector.step
        scope = None if step is None else f"{name}.forward.{step.number(name)}"
        if scope is not None:
            self.scopes.stack.append(scope)
        self._calls().append((cell, scope, None))


def _inputs(args: tuple) -> tuple:
    """An operator of the older kind is handed over as (primitive, name, its arguments)."""
    if len(args) == 3 and isinstance(args[0], Primitive) and isinstance(args[1], str):
        return tuple(args[2])
    return args
