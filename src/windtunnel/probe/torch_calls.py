"""One forward call and its backward, whatever it is (an API, a module): measured, encoded, written.

open(args, kwargs) ──> inputs as text, their edges
close(output)      ──> entry "….forward" ──> nodes of autograd hooked
backward runs      ──> entry "….backward": gradients of the outputs, gradients of the inputs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from windtunnel.probe.collector import Collector, StepOutput
from windtunnel.probe.tensor_store import TensorStore
from windtunnel.probe.torch_elements import Elements, Pieces, tensors_in
from windtunnel.probe.torch_finders import finder_for
from windtunnel.probe.torch_gradients import Call, Edges
from windtunnel.probe.torch_scopes import backward_of

__all__ = ["CallWriter", "OpenCall"]


class OpenCall:
    """A call that has begun: its names, its inputs as text, the edges of its inputs."""

    __slots__ = (
        "args",
        "backward",
        "edges",
        "forward",
        "inputs",
        "kwargs",
        "parents",
        "step",
        "store",
        "tensors",
    )

    def __init__(
        self, step: StepOutput, forward: str | None, backward: str | None, parents: tuple[str, ...]
    ) -> None:
        self.step = step
        self.forward = forward  # None: not wanted
        self.backward = backward
        self.parents = parents
        self.inputs: Pieces = []
        self.edges: Edges | None = None
        self.store: TensorStore | None = None
        self.tensors: Sequence[torch.Tensor] = ()
        self.args: tuple = ()
        self.kwargs: dict = {}


class CallWriter:
    """Writes calls for one debugger."""

    def __init__(self, collector: Collector, elements: Elements) -> None:
        self.collector = collector
        self.elements = elements
        config = collector.config
        self.selection = collector.selection
        self.has_forward = "forward" in config.data_mode
        self.has_backward = "backward" in config.data_mode
        self.has_input = "input" in config.data_mode
        self.has_output = "output" in config.data_mode
        self.has_structure_only = config.task == "structure"
        self.has_parents = config.level in ("L0", "mix", "L2")
        self.has_stacks = config.extra_info
        self.finder = finder_for(collector, elements.meter)  # keeps only calls of a kind; None: keeps all
        self.exposed_in: StepOutput | None = (
            None  # from then on memory may be written unseen until the step ends
        )
        self._partial: dict[int, set[Call]] = {}  # backward pass -> calls of which some nodes have run

    def open(
        self, step: StepOutput, forward: str, backward: str, parents: Sequence[str], args: tuple, kwargs: dict
    ) -> OpenCall | None:
        """Take the inputs as they are now, for the call may overwrite them; None if the call is not wanted."""
        wants_forward, wants_backward = self.has_forward, self.has_backward and torch.is_grad_enabled()
        if not self.selection.is_open:
            wants_forward = self.selection.wants(forward, parents) and wants_forward
            if wants_backward and not self.selection.has_scope:  # a scope is asked when the backward comes
                wants_backward = self.selection.wants(backward, _backwards(parents))
            if not wants_forward and not wants_backward:
                return None
        if self.exposed_in is step:
            self.elements.meter.forget()
        call = OpenCall(
            step, forward if wants_forward else None, backward if wants_backward else None, tuple(parents)
        )
        call.tensors = [*tensors_in(args), *tensors_in(kwargs)] if kwargs else list(tensors_in(args))
        if wants_backward:
            call.edges = Edges(call.tensors)
        if not self.has_forward and self.has_stacks:  # a backward is looked up by the stack of its forward
            step.folder.add_stack(forward, self.collector.stacks.here())
        if not wants_forward or self.has_structure_only:
            return call
        if self.finder is not None:
            call.args, call.kwargs = self.finder.inputs(forward, args, kwargs)
            return call
        call.store = self.store_for(step, forward)
        if self.has_input:
            self._inputs(call, args, kwargs)
        return call

    def close(self, call: OpenCall, output: Any, parameters: dict[str, torch.Tensor] | None = None) -> None:
        """Write the forward entry and hook the backward.

        Modules have `parameters`. Their backward lists the inputs that have a gradient; that of an API has a place
        for each input that could have one.
        """
        outputs = output if isinstance(output, tuple) else (output,)
        if self.exposed_in is call.step:
            self.elements.meter.forget()
        if call.forward is not None:
            self._write_forward(call, outputs, parameters)
        if call.edges is None or call.backward is None:
            return
        tensors = [tensor for tensor in tensors_in(outputs) if tensor.grad_fn is not None]
        if not tensors:
            return
        if parameters is not None:
            keep = [tensor.requires_grad for tensor in call.tensors]
        else:
            keep = [tensor.is_floating_point() or tensor.is_complex() for tensor in call.tensors]
        done = self._backward_writer(call.step, call.backward, call.parents)
        Call(call.edges, tensors, done, self._begun, self._failed, keep, by_edge=parameters is None)

    def _write_forward(
        self, call: OpenCall, outputs: tuple, parameters: dict[str, torch.Tensor] | None
    ) -> None:
        name = call.forward
        pieces: Pieces = ["{"]
        if self.finder is not None:
            if not self.finder.found(name, (call.args, call.kwargs), outputs):
                return
            call.store = call.step.store
            self._inputs(call, call.args, call.kwargs)
        pieces += call.inputs
        if self.has_output and not self.has_structure_only:
            pieces.append(', "output": ' if call.inputs else '"output": ')
            write = self.elements.encode if hasattr(outputs, "_fields") else self.elements.listed
            write(pieces, outputs, f"{name}.output", call.store)
            if parameters is not None:
                pieces.append(', "parameters": ')
                self.elements.named(pieces, parameters, f"{name}.parameters", call.store)
        pieces.append("}")
        frames = self.collector.stacks.here() if self.has_stacks else None
        parent = call.parents[-1] if call.parents else None
        self.collector.put(call.step, name, pieces, frames, parent, self.has_parents)

    def _inputs(self, call: OpenCall, args: tuple, kwargs: dict) -> None:
        self.elements.inputs(call.inputs, call.forward, args, kwargs, call.store)

    def store_for(self, step: StepOutput, name: str) -> TensorStore | None:
        """Where the tensors of an entry are saved; None if only statistics are wanted."""
        return step.store if self.selection.wants_tensor(name) else None

    def _backward_writer(self, step: StepOutput, name: str, parents: tuple) -> Callable[[list, list], None]:
        parent = backward_of(parents[-1]) if parents else None

        def done(grad_outputs: list, grad_inputs: list) -> None:
            try:
                if self.selection.has_scope and not self.selection.wants(name, _backwards(parents)):
                    return
                if self.has_structure_only:
                    self.collector.put(step, name, [], None, parent, self.has_parents)
                    return
                store = self.store_for(step, name)
                if self.finder is not None:
                    if not self.finder.found(name, grad_outputs, grad_inputs):
                        return
                    store = step.store
                pieces: Pieces = ["{"]
                if self.has_input:
                    pieces.append('"input": ')
                    self.elements.listed(pieces, grad_outputs, f"{name}.input", store)
                if self.has_output:
                    pieces.append(', "output": ' if self.has_input else '"output": ')
                    self.elements.listed(pieces, grad_inputs, f"{name}.output", store)
                pieces.append("}")
                self.collector.put(step, name, pieces, None, parent, self.has_parents)
            except Exception as error:
                self._failed(error)

        return done

    def gradient(self, step: StepOutput, entry: str, key: str, gradient: torch.Tensor) -> Pieces:
        """The text of a parameter's gradient, in a list of one as readers of dumps know it."""
        pieces: Pieces = ["["]
        self.elements.tensor(pieces, gradient, f"{entry}.{key}", self.store_for(step, entry))
        pieces.append("]")
        return pieces

    def _begun(self, call: Call) -> None:
        task = torch._C._current_graph_task_id()  # threads may run backward at the same time
        if task not in self._partial:
            self._partial[task] = set()
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._finish(task))
        self._partial[task].add(call)

    def _finish(self, task: int) -> None:
        """At the end of a backward: write what some nodes never completed (their outputs were not used)."""
        for call in self._partial.pop(task, ()):
            try:
                call.finish()
            except Exception as error:
                self._failed(error)

    def finish_partial(self) -> None:
        """Write what is incomplete of every backward: one that ended by an exception calls nobody back."""
        for task in list(self._partial):
            self._finish(task)

    def _failed(self, error: Exception) -> None:
        self.collector.guard("gradients of a call", error)


def _backwards(parents: Sequence[str]) -> list[str]:
    return [name for name in map(backward_of, parents) if name is not None]
