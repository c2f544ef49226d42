"""Levels L0 and mix inside compiled graphs: module hooks that a compiler can trace, and the entries they produce.

    Dynamo inlines a module's hooks ──> enter and leave in the graph ──> running graph ──> GraphNotes ──> graph/step…
    Python runs the same hooks      ──> as in eager code

A graph with notes is another graph: values that would have stayed in registers are written to memory, and the
compiler fuses less. So it is compiled in addition to the program's own code (see `regions` and `tracing`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from windtunnel.probe.collect.collector import Collector, StepOutput
from windtunnel.probe.collect.parameter_gradients import ParameterGradients
from windtunnel.probe.collect.scopes import Scopes, backward_of
from windtunnel.probe.pytorch.compiled.hidden import mark_traceable
from windtunnel.probe.pytorch.compiled.note_ops import connect, tracing_notes
from windtunnel.probe.pytorch.compiled.note_values import pack, unpack
from windtunnel.probe.pytorch.eager.call_writer import CallWriter, OpenCall
from windtunnel.probe.pytorch.eager.modules import WRAPPED, ModuleHooks, is_wrapper, leaves, named_modules

__all__ = ["GraphNotes", "GraphStep", "TraceableHooks", "eager_names"]

GraphStep = Callable[[], StepOutput | None]  # the step's folder for what runs inside graphs


def eager_names(model: Any) -> list[tuple[str, nn.Module]]:
    """The modules to watch, named as if nothing were compiled: a wrapper of torch.compile is not a module of its own."""
    found = []
    for name, module in named_modules(model):
        if is_wrapper(module):
            continue
        prefix, _, path = name.partition(".")
        parts = [part for part in path.split(".") if part != WRAPPED]
        if len(parts) > (1 if isinstance(model, nn.Module) else 2):  # else it is the given model itself
            found.append((f"{prefix}.{'.'.join(parts)}", module))
    return found


class TraceableHooks:
    """Hooks on modules that call `eager` in eager code, and put notes into graphs while a compiler traces them."""

    def __init__(self, eager: ModuleHooks, writer: CallWriter, graph: GraphStep) -> None:
        self.eager = eager
        self.notes = GraphNotes(eager.collector, writer, eager.scopes, graph)
        self._hooks: dict[tuple[str, int], tuple[Callable, Callable]] = {}
        self._numbers: dict[tuple[str, int], tuple[int, ...]] = {}
        self.names: tuple[tuple[str, int], ...] = ()  # what the hooks of now call the modules

    def install(self, model: Any) -> list[Any]:
        """Hook every module below the model; returns the handles."""
        named = eager_names(model)
        self._connect(named)
        return [handle for name, module in named for handle in self._watch(name, module)]

    def replace(self, named: list[tuple[str, nn.Module]], handles: list[Any]) -> None:
        """Put these hooks where eager ones are: of each module the handle of the one before and the one after."""
        self._connect(named)
        for index, (name, module) in enumerate(named):
            pair = handles[2 * index : 2 * index + 2]
            self._numbers[name, id(module)] = tuple(handle.id for handle in pair)
            for handle, hook in zip(pair, self._hooks_of(name, module), strict=True):
                table = handle.hooks_dict_ref()
                if table is not None and handle.id in table:
                    table[handle.id] = hook

    def end_step(self) -> None:
        self.notes.end_step()

    def _connect(self, named: list[tuple[str, nn.Module]]) -> None:
        self.names = tuple((name, id(module)) for name, module in named)
        self.notes.modules = dict(named)
        connect(self.notes)

    def _watch(self, name: str, module: nn.Module) -> tuple[Any, Any]:
        before, after = self._hooks_of(name, module)
        handles = (
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, with_kwargs=True, always_call=True),
        )
        numbers = self._numbers.setdefault((name, id(module)), tuple(handle.id for handle in handles))
        for handle, number in zip(handles, numbers, strict=True):
            _renumber(handle, number)
        return handles

    def _hooks_of(self, name: str, module: nn.Module) -> tuple[Callable, Callable]:
        """The same functions, under the same numbers, in every step: compiled code is bound to both."""
        key = (name, id(module))
        if key not in self._hooks:
            self._hooks[key] = self._make_hooks(name, module)
        return self._hooks[key]

    def _make_hooks(self, name: str, module: nn.Module) -> tuple[Callable, Callable]:
        run_before, run_after = self.eager.before, self.eager.after

        def before(_: nn.Module, args: tuple, kwargs: dict) -> None:
            if torch.compiler.is_dynamo_compiling():
                if _tracing_notes():
                    tensors: list[torch.Tensor] = []
                    integers: list[int] = []
                    reals: list[float] = []
                    plan = pack((args, kwargs), tensors, integers, reals)
                    torch.ops.windtunnel.enter(tensors, integers, reals, plan, name)
            else:
                run_before(name, module, args, kwargs)

        def after(_: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            if torch.compiler.is_dynamo_compiling():
                if _tracing_notes():
                    tensors: list[torch.Tensor] = []
                    integers: list[int] = []
                    reals: list[float] = []
                    plan = pack((output, torch.is_grad_enabled()), tensors, integers, reals)
                    torch.ops.windtunnel.leave(tensors, integers, reals, plan, name)
            else:
                run_after(name, module, output)

        for hook in (before, after):
            mark_traceable(hook)
        return before, after


def _tracing_notes() -> bool:
    return tracing_notes()


# What torch.compiler.assume_constant_result does, without loading Dynamo: called while tracing, its answer is fixed.
_tracing_notes._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _renumber(handle: Any, number: int) -> None:
    """Give a hook the number it had before; torch counts up with every registration."""
    for table in (handle.hooks_dict_ref(), *(extra() for extra in handle.extra_dict_ref)):
        if table is not None and handle.id in table:
            table[number] = table.pop(handle.id)
    handle.id = number


class GraphNotes:
    """Takes the notes of running graphs and writes them as the modules of the graph folder."""

    def __init__(self, collector: Collector, writer: CallWriter, scopes: Scopes, graph: GraphStep) -> None:
        self.collector = collector
        self.writer = writer
        self.scopes = scopes
        self.graph = graph
        self.modules: dict[str, nn.Module] = {}
        self._gradients = ParameterGradients(collector, writer)
        self._numbers = itertools.count()  # never used twice: a backward may come after its step
        self._waiting: dict[
            int, _GraphCall
        ] = {}  # for its gradients, by the number that travels in the graph
        self._open = threading.local()

    def enter(self, name: str, value: tuple) -> None:
        """A module of a graph begins."""
        try:
            step = self.graph()
            if step is None:
                return
            number = step.number(name)
            call = _GraphCall(name, number, step, tuple(self.scopes.names()))
            self.scopes.stack.append(call.forward)
            self._calls().append(call)
            self._forget()
            args, kwargs = unpack(*value)
            with torch._C.DisableTorchFunction(), torch.no_grad():
                call.opened = self.writer.open(step, call.forward, call.backward, call.parents, args, kwargs)
        except Exception as error:
            self.collector.guard(f"the inputs of {name} in a compiled graph", error)

    def leave(self, name: str, value: tuple) -> int:
        """It ends; returns the number its gradients will bring along."""
        try:
            self._forget()
            call = self._close(name)
            return -1 if call is None else self._finish(call, value)
        except Exception as error:
            self.collector.guard(f"the outputs of {name} in a compiled graph", error)
            return -1

    def gradients(self, name: str, call: int, plan: str, tensors: list[torch.Tensor]) -> None:
        """The backward of that call has come this far in the backward graph."""
        try:
            found = self._waiting.get(call)
            if found is None:
                return
            self._forget()
            rest = iter(tensors)
            outputs, inputs = (
                [next(rest) if mark == "t" else None for mark in side] for side in plan.split("/")
            )
            self._write_backward(found, outputs, inputs)
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        self.collector.guard("gradients in a compiled graph", error)

    def end_step(self) -> None:
        self._gradients.remove_all()
        self._waiting = {}

    def _forget(self) -> None:
        """Compiled code reuses memory without telling the tensors of it: what was measured before may be gone."""
        self.writer.elements.meter.forget()

    def _finish(self, call: _GraphCall, value: tuple) -> int:
        output, has_gradients = unpack(*value)
        module = self.modules.get(call.name)
        found = module._parameters if module is not None else {}
        parameters = {key: tensor for key, tensor in found.items() if tensor is not None}
        if call.opened is not None:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self.writer.close(call.opened, output, parameters)
        if not has_gradients or not self.writer.has_backward or self.writer.has_structure_only:
            return -1
        if self.writer.selection.parameter_gradients:
            self._gradients.watch(call.step, call.name, leaves(parameters))
        number = next(self._numbers)
        self._waiting[number] = call
        return number

    def _close(self, name: str) -> _GraphCall | None:
        calls = self._calls()
        for index in reversed(range(len(calls))):
            call = calls[index]
            if call.name == name:
                del calls[index:]
                stack = self.scopes.stack
                if call.forward in stack:
                    del stack[stack.index(call.forward) :]
                self.writer.selection.leave(call.forward, self.scopes.names())
                return call
        return None

    def _write_backward(self, call: _GraphCall, outputs: list, inputs: list) -> None:
        writer, name = self.writer, call.backward
        parents = [parent for parent in map(backward_of, call.parents) if parent is not None]
        if not writer.selection.is_open and not writer.selection.wants(name, parents):
            return
        entry, store = call.step.next_pass(name), writer.store_for(call.step, name)
        if writer.finder is not None:
            if not writer.finder.found(entry, outputs, inputs):
                return
            store = call.step.store
        sides = [("input", outputs)] if writer.has_input else []
        sides += [("output", inputs)] if writer.has_output else []
        pieces: list = ["{"]
        for index, (side, gradients) in enumerate(sides):
            pieces.append(f'{", " if index else ""}"{side}": ')
            writer.elements.listed(pieces, gradients, f"{entry}.{side}", store)
        pieces.append("}")
        parent = backward_of(call.parents[-1]) if call.parents else None
        self.collector.put(call.step, entry, pieces, None, parent, writer.has_parents)

    def _calls(self) -> list[_GraphCall]:
        found = getattr(self._open, "calls", None)
        if found is None:
            found = self._open.calls = []
        return found


class _GraphCall:
    """One call of a module inside a graph."""

    __slots__ = ("backward", "forward", "name", "opened", "parents", "step")

    def __init__(self, name: str, number: int, step: StepOutput, parents: tuple[str, ...]) -> None:
        self.name = name
        self.forward = f"{name}.forward.{number}"
        self.backward = f"{name}.backward.{number}"
        self.step = step
        self.parents = parents
        self.opened: OpenCall | None = None  # None: its forward is not wanted
