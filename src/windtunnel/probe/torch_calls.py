"""One forward call and its backward, whatever it is (an API, a module): measured, encoded, written.

before(args, kwargs) ──> inputs as text, their edges
after(output)        ──> entry "….forward" ──> nodes of autograd hooked
backward runs        ──> entry "….backward": gradients of the outputs, gradients of the inputs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from windtunnel.probe.collector import Collector, StepOutput
from windtunnel.probe.tensor_store import TensorStore
from windtunnel.probe.torch_elements import Elements, Pieces, tensors_in
from windtunnel.probe.torch_gradients import Call, Edges

__all__ = ["CallWriter", "OpenCall"]


class OpenCall:
    """A call that has begun: its name, its inputs as text, the edges of its inputs."""

    __slots__ = ("edges", "forward", "inputs", "n_nonfinite", "parent", "step", "store", "tensors")

    def __init__(self, step: StepOutput, forward: str, parent: str | None) -> None:
        self.step = step
        self.forward = forward
        self.parent = parent
        self.inputs: Pieces = []
        self.edges: Edges | None = None
        self.store: TensorStore | None = None
        self.tensors: list[torch.Tensor] = []
        self.n_nonfinite = 0


class CallWriter:
    """Writes calls for one debugger."""

    def __init__(self, collector: Collector, elements: Elements) -> None:
        self.collector = collector
        self.elements = elements
        config = collector.config
        self.has_forward = "forward" in config.data_mode
        self.has_backward = "backward" in config.data_mode
        self.has_input = "input" in config.data_mode
        self.has_output = "output" in config.data_mode
        self.has_tensors = config.task == "tensor"
        self.has_structure_only = config.task == "structure"
        self.has_parents = config.level in ("L0", "mix", "L2")
        self.has_stacks = config.extra_info
        self._partial: set[Call] = set()  # backwards of which some nodes have run

    def store_for(self, step: StepOutput, name: str) -> TensorStore | None:
        """Where the tensors of an entry are saved; None if only statistics are wanted."""
        if self.has_tensors or self.collector.selection.wants_tensor(name):
            return step.store
        return None

    def before(
        self, step: StepOutput, forward: str, parent: str | None, args: tuple, kwargs: dict
    ) -> OpenCall:
        """Take the inputs as they are now: the call may overwrite them."""
        call = OpenCall(step, forward, parent)
        if self.has_structure_only:
            return call
        call.tensors = list(tensors_in(args))
        if kwargs:
            call.tensors += tensors_in(list(kwargs.values()))
        if self.has_backward and torch.is_grad_enabled():
            call.edges = Edges(call.tensors)
        if self.has_forward:
            call.store = self.store_for(step, forward)
            if self.has_input:
                out, elements = call.inputs, self.elements
                out.append('"input_args": ')
                elements.listed(out, args, f"{forward}.input", call.store)
                out.append(', "input_kwargs": ')
                elements.named(out, kwargs, f"{forward}.kwargs", call.store)
        return call

    def after(
        self,
        call: OpenCall,
        output: Any,
        backward: str,
        backward_parent: str | None,
        *,
        skip: int,
        parameters: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """Write the forward entry and hook the backward. `skip`: frames between here and the user's call.

        Modules have `parameters`. Their backward lists the inputs that have a gradient; that of an API has a place
        for each input that could have one.
        """
        name, step, collector = call.forward, call.step, self.collector
        frames = collector.stacks.here(skip + 1) if self.has_stacks else None
        outputs = output if isinstance(output, tuple) and not hasattr(output, "_fields") else (output,)
        if isinstance(output, list):
            outputs = tuple(output)
        if self.has_forward:
            pieces = ["{", *call.inputs]
            if self.has_output and not self.has_structure_only:
                pieces.append(', "output": ' if call.inputs else '"output": ')
                self.elements.listed(pieces, outputs, f"{name}.output", call.store)
            if parameters is not None and not self.has_structure_only:
                pieces.append(', "parameters": ')
                self.elements.named(pieces, parameters, f"{name}.parameters", call.store)
            pieces.append("}")
            collector.put(step, name, pieces, frames, call.parent, self.has_parents)
        edges = call.edges
        if edges is None:
            return
        tensors = [tensor for tensor in tensors_in(outputs) if tensor.grad_fn is not None]
        if not tensors:
            return
        if parameters is not None:
            keep = [tensor.requires_grad for tensor in call.tensors]
        else:
            keep = [tensor.is_floating_point() or tensor.is_complex() for tensor in call.tensors]
        done = self._backward_writer(step, backward, backward_parent)
        Call(edges, tensors, done, self._begun, self._failed, keep, by_edge=parameters is None)

    def _backward_writer(
        self, step: StepOutput, name: str, parent: str | None
    ) -> Callable[[list, list], None]:
        def done(grad_outputs: list, grad_inputs: list) -> None:
            try:
                store = self.store_for(step, name)
                pieces = ["{"]
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

    def _begun(self, call: Call) -> None:
        if not self._partial:
            torch.autograd.Variable._execution_engine.queue_callback(self.finish_partial)
        self._partial.add(call)

    def finish_partial(self) -> None:
        """At the end of a backward: write what some nodes never completed (their outputs were not used)."""
        partial, self._partial = self._partial, set()
        for call in partial:
            try:
                call.finish()
            except Exception as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.collector.guard("gradients of a call", error)
