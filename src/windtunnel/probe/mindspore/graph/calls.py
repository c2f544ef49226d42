"""Assemble the values that running graphs send: values with the same token are one call of a cell, forward and backward.

    enter ──> number and parents ──> values ──> exit, all parameters there ──> entry "….forward.n"
    gradients of its inputs and outputs ──> all there, or the step ends ──> entry "….backward.n"
    gradients of parameters ──> entry "….parameters_grad.n"

The forward part arrives in program order; gradients may overtake it, because a graph is ordered only by data.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from windtunnel.probe.collect.collector import Collector, StepOutput
from windtunnel.probe.collect.scopes import backward_of
from windtunnel.probe.mindspore.graph.values import GraphValues, constant_text, nested

__all__ = ["GraphCalls", "WatchedCell"]


@dataclass(frozen=True, slots=True)
class WatchedCell:
    """A cell whose values are noted."""

    name: str  # "Cell.layers.0.Dense"
    parameters: tuple[str, ...]
    trainable: tuple[str, ...]  # those of them that get a gradient
    frames: tuple[str, ...]  # where its construct is written, innermost first


class PlaceOfValue(Protocol):
    """`taps.Place`, which cannot be imported without MindSpore."""

    @property
    def cell(self) -> int: ...

    @property
    def path(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def value(self) -> Any: ...


@dataclass(slots=True)
class _Call:
    cell: WatchedCell
    index: int  # of the cell
    step: StepOutput
    number: int
    parents: tuple[str, ...]
    frames: tuple[str, ...]
    wants_forward: bool
    wants_backward: bool
    values: dict[str, str] = field(default_factory=dict)  # path -> text
    tensors: dict[str, bool] = field(
        default_factory=dict
    )  # path of each tensor in order -> may have a gradient
    early: list[tuple[PlaceOfValue, np.ndarray]] = field(default_factory=list)
    gradients: dict[str, str] = field(default_factory=dict)
    has_ended: bool = False
    is_written: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether every gradient that can come has come."""
        wanted = [path for path, is_float in self.tensors.items() if is_float]
        return self.has_ended and all(path in self.gradients for path in wanted)

    @property
    def forward(self) -> str:
        return f"{self.cell.name}.forward.{self.number}"

    @property
    def backward(self) -> str:
        return f"{self.cell.name}.backward.{self.number}"


class GraphCalls:
    """Receives what graphs note while they run, in threads of MindSpore's, and writes entries."""

    def __init__(self, collector: Collector, output: Callable[[], StepOutput | None]) -> None:
        self.collector = collector
        self.selection = collector.selection
        self.output = output  # the step folder calls of now go to; None: nothing is collected
        self.values = GraphValues(collector.config.summary_mode)
        self.cells: dict[int, WatchedCell] = {}
        self.n_noted = 0
        self._calls: dict[int, _Call] = {}  # by token
        self._early: dict[int, list[tuple[PlaceOfValue, np.ndarray]]] = {}
        self._stack: list[_Call] = []
        self._parameters: dict[int, _ParameterGradients] = {}
        self._lock = threading.RLock()

    def receive(self, stage: str, token: int, place: PlaceOfValue, array: np.ndarray) -> None:
        """One value from a graph; never raises into it."""
        try:
            cell = self.cells.get(place.cell)
            if cell is None:
                return  # of another debugger
            with self._lock:
                if stage == "forward":
                    self._forward(cell, token, place, array)
                elif token == 0:
                    self._parameter(cell, place, array)
                else:
                    self._gradient(token, place, array)
        except Exception as error:
            self.collector.guard("a value from a graph", error)

    def write_backward(self) -> None:
        """Write the backward of calls that have all their gradients."""
        with self._lock:
            self._write_backwards([call for call in self._calls.values() if call.is_complete])

    def end_step(self) -> None:
        """Write what is incomplete, for nothing will come any more."""
        with self._lock:
            for call in self._calls.values():
                self._write_forward(call)
            self._write_backwards(list(self._calls.values()))
            for gradients in self._parameters.values():
                self._end_parameters(gradients)
                self._write_parameters(gradients)
            self._calls.clear()
            self._early.clear()
            self._stack.clear()
            self._parameters.clear()

    def _forward(self, cell: WatchedCell, token: int, place: PlaceOfValue, array: np.ndarray) -> None:
        if place.kind == "enter":
            self._enter(cell, token, place)
            return
        call = self._calls.get(token)
        if place.path.startswith("parameters."):
            # Parameters are ordered with writes to them, not with the rest: they may come before and after.
            if call is None:
                self._keep(token, place, array)
                return
            self._value(call, place, array)
            self._write_if_complete(call)
        elif call is None:
            return
        elif place.kind == "exit":
            self._leave(call)
        else:
            self._value(call, place, array)

    def _enter(self, cell: WatchedCell, token: int, place: PlaceOfValue) -> None:
        self.n_noted += 1
        step = self.output()
        if step is None:
            self._early.pop(token, None)
            return
        parents = tuple(call.forward for call in self._stack)
        frames = cell.frames + (self._stack[-1].frames if self._stack else ())
        call = _Call(cell, place.cell, step, step.number(cell.name), parents, frames, True, True)
        config = self.collector.config
        call.wants_forward = "forward" in config.data_mode and self.selection.wants(call.forward, parents)
        call.wants_backward = "backward" in config.data_mode
        if call.wants_backward and not self.selection.has_scope:
            call.wants_backward = self.selection.wants(call.backward, _backwards(parents))
        self._stack.append(call)
        self._calls[token] = call
        for early, copy in self._early.pop(token, ()):
            if early.path.startswith("parameters."):
                self._value(call, early, copy)
            else:
                call.early.append((early, copy))

    def _leave(self, call: _Call) -> None:
        while self._stack and self._stack.pop() is not call:
            pass  # a graph that was interrupted left its calls behind
        self.selection.leave(call.forward, call.parents)
        call.has_ended = True
        self._write_if_complete(call)
        early, call.early = call.early, []
        for place, copy in early:
            self._gradient_of(call, place, copy)

    def _value(self, call: _Call, place: PlaceOfValue, array: np.ndarray) -> None:
        is_tensor = place.kind in ("tensor", "bfloat16")
        if is_tensor and not place.path.startswith("parameters."):
            call.tensors[place.path] = array.dtype.kind in "fc"
        if not call.wants_forward or not self._wants_side(place.path) or self.collector.has_structure_only:
            return
        if is_tensor:
            name = call.forward
            store = call.step.store if self.selection.wants_tensor(name) else None
            call.values[place.path] = self.values.tensor(
                array, place.kind == "bfloat16", f"{name}.{place.path}", store
            )
        elif place.kind == "constant":
            call.values[place.path] = constant_text(place.value)
        else:
            call.values[place.path] = "null"

    def _wants_side(self, path: str) -> bool:
        is_input = path.startswith(("input.", "kwargs."))
        return self.selection.forward_input if is_input else self.selection.forward_output

    def _write_if_complete(self, call: _Call) -> None:
        n_expected = len(call.cell.parameters) if self._expects_parameters(call) else 0
        n_parameters = sum(path.startswith("parameters.") for path in call.values)
        if call.has_ended and n_parameters >= n_expected:
            self._write_forward(call)

    def _expects_parameters(self, call: _Call) -> bool:
        return call.wants_forward and self.selection.forward_output and not self.collector.has_structure_only

    def _write_forward(self, call: _Call) -> None:
        if call.is_written or not call.has_ended:
            return
        call.is_written = True
        frames = call.frames if self.collector.config.extra_info else None
        if not call.wants_forward:
            if frames is not None and "forward" not in self.collector.config.data_mode:
                call.step.folder.add_stack(call.forward, frames)  # a backward is looked up by it
            return
        body = []
        if self.selection.forward_input:
            body.append(f'"input_args": {nested(_below(call.values, "input"), is_list=True)}')
            body.append(f'"input_kwargs": {nested(_below(call.values, "kwargs"), is_list=False)}')
        if self.selection.forward_output:
            body.append(f'"output": {nested(_below(call.values, "output"), is_list=True)}')
            parameters = _below(call.values, "parameters")
            ordered = {name: parameters[name] for name in call.cell.parameters if name in parameters}
            body.append(f'"parameters": {nested(ordered, is_list=False)}')
        parent = call.parents[-1] if call.parents else None
        self.collector.put(call.step, call.forward, ["{" + ", ".join(body) + "}"], frames, parent, True)
        call.values.clear()

    def _keep(self, token: int, place: PlaceOfValue, array: np.ndarray) -> None:
        if self.output() is not None:
            self._early.setdefault(token, []).append((place, np.array(array)))

    def _gradient(self, token: int, place: PlaceOfValue, array: np.ndarray) -> None:
        call = self._calls.get(token)
        if call is None:
            self._keep(token, place, array)
        elif not call.has_ended:  # its number among the inputs or outputs is not known yet
            call.early.append((place, np.array(array)))
        else:
            self._gradient_of(call, place, array)

    def _gradient_of(self, call: _Call, place: PlaceOfValue, array: np.ndarray) -> None:
        if not call.wants_backward or place.path in call.gradients or not call.step.is_open:
            return
        # The gradient of an output is an input of the backward.
        is_input = place.path.startswith("output.")
        wanted = self.selection.backward_input if is_input else self.selection.backward_output
        text = ""
        if wanted and not self.collector.has_structure_only:
            outputs, inputs = _gradient_places(call.tensors)
            number = (outputs if is_input else inputs).index(place.path)
            stem = f"{call.backward}.{'input' if is_input else 'output'}.{number}"
            store = call.step.store if self.selection.wants_tensor(call.backward) else None
            text = self.values.tensor(array, place.kind == "bfloat16", stem, store)
        call.gradients[place.path] = text

    def _write_backwards(self, calls: list[_Call]) -> None:
        """In the order of a dynamic graph, last call first: a graph computes gradients in an order of its own."""
        for call in reversed(calls):
            if call.gradients:
                gradients = self._parameters.get(call.index)
                if gradients is not None:
                    self._end_parameters(gradients)
                    self._write_parameters(gradients)
                self._write_backward(call)

    def _write_backward(self, call: _Call) -> None:
        gradients, call.gradients = call.gradients, {}
        if not gradients:
            return
        call.wants_backward = False  # it is written once
        parents = _backwards(call.parents)
        if self.selection.has_scope and not self.selection.wants(call.backward, parents):
            return
        outputs, inputs = _gradient_places(call.tensors)
        body = []
        if self.selection.backward_input:
            body.append(f'"input": [{", ".join(gradients.get(path, "null") for path in outputs)}]')
        if self.selection.backward_output:
            body.append(f'"output": [{", ".join(gradients.get(path, "null") for path in inputs)}]')
        parent = backward_of(call.parents[-1]) if call.parents else None
        self.collector.put(call.step, call.backward, ["{" + ", ".join(body) + "}"], None, parent, True)

    def _parameter(self, cell: WatchedCell, place: PlaceOfValue, array: np.ndarray) -> None:
        gradients = self._parameters.get(place.cell)
        if gradients is None:
            step = self.output() if self.selection.parameter_gradients else None
            if step is None or self.collector.has_structure_only:
                return
            gradients = self._parameters[place.cell] = _ParameterGradients(cell, step)
        if not gradients.step.is_open:
            return
        key = place.path.partition(".")[2]
        if key in gradients.texts:  # another backward has begun
            self._end_parameters(gradients)
        if not gradients.texts:
            entry = f"{cell.name}.parameters_grad"
            gradients.entry = f"{entry}.{gradients.step.number(entry)}"
        store = gradients.step.store if self.selection.wants_tensor(gradients.entry) else None
        text = self.values.tensor(array, place.kind == "bfloat16", f"{gradients.entry}.{key}", store)
        gradients.texts[key] = f"[{text}]"

    def _end_parameters(self, gradients: _ParameterGradients) -> None:
        texts, gradients.texts = gradients.texts, {}
        if texts:
            ordered = {name: texts[name] for name in gradients.cell.trainable if name in texts}
            gradients.finished.append((gradients.entry, nested(ordered, is_list=False)))

    def _write_parameters(self, gradients: _ParameterGradients) -> None:
        finished, gradients.finished = gradients.finished, []
        for entry, text in finished:
            if self.selection.wants(entry):
                self.collector.put(gradients.step, entry, [text])


@dataclass(slots=True)
class _ParameterGradients:
    cell: WatchedCell
    step: StepOutput
    entry: str = ""
    texts: dict[str, str] = field(default_factory=dict)
    finished: list[tuple[str, str]] = field(default_factory=list)


def _gradient_places(tensors: dict[str, bool]) -> tuple[list[str], list[str]]:
    """Of a backward: the outputs that have a gradient to come in, and a place for each tensor that went in."""
    outputs = [path for path, is_float in tensors.items() if is_float and path.startswith("output.")]
    inputs = {path: is_float for path, is_float in tensors.items() if not path.startswith("output.")}
    return outputs, list(inputs) if any(inputs.values()) else []


def _below(texts: dict[str, str], kind: str) -> dict[str, str]:
    """Of all paths those that begin with the word, without it."""
    return {path[len(kind) + 1 :]: text for path, text in texts.items() if path.startswith(f"{kind}.")}


def _backwards(parents: Sequence[str]) -> list[str]:
    return [name for name in map(backward_of, parents) if name is not None]
