"""One forward call and its backward, of an API or a module: measured, encoded, written.

open(args, kwargs) ──> inputs as text, their edges
close(output)      ──> entry "….forward" ──> nodes of autograd hooked
backward runs      ──> entry "….backward": gradients of the outputs, gradients of the inputs
runs once more     ──> entry "….pass2.backward", if the graph was retained
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from windtunnel.probe.collect.collector import Collector, StepOutput
from windtunnel.probe.collect.elements import Elements, Pieces
from windtunnel.probe.collect.overflow_finder import finder_for
from windtunnel.probe.collect.scopes import backward_of
from windtunnel.probe.collect.values import ValueWords
from windtunnel.probe.files.tensor_store import TensorStore

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
        self.edges: Any = None
        self.store: TensorStore | None = None
        self.tensors: Sequence[Any] = ()
        self.args: tuple = ()
        self.kwargs: dict = {}


class CallWriter:
    """Writes calls for one debugger.

    A framework says whether gradients are recorded (`is_recording`), where they arrive (`edges_of`), and hooks the nodes
    of a call (`watch_backward`), which calls `done` with the gradients. `current_pass` is the number of the running
    backward.
    """

    words: ValueWords
    is_recording: Callable[[], bool]
    current_pass: Callable[[], int]

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
        self.finder = finder_for(
            collector, elements.meter, self.words
        )  # keeps only calls of a kind; None: keeps all
        self.exposed_in: StepOutput | None = (
            None  # from then on memory may be written unseen until the step ends
        )

    def open(
        self, step: StepOutput, forward: str, backward: str, parents: Sequence[str], args: tuple, kwargs: dict
    ) -> OpenCall | None:
        """Record the inputs now, because the call may overwrite them; None if the call is not wanted."""
        wants_forward, wants_backward = self.has_forward, self.has_backward and self.is_recording()
        if not self.selection.is_open:
            wants_forward = self.selection.wants(forward, parents) and wants_forward
            if (
                wants_backward and not self.selection.has_scope
            ):  # with a scope, decided when the backward runs
                wants_backward = self.selection.wants(backward, _backwards(parents))
            if not wants_forward and not wants_backward:
                return None
        if self.exposed_in is step:
            self.elements.meter.forget()
        call = OpenCall(
            step, forward if wants_forward else None, backward if wants_backward else None, tuple(parents)
        )
        tensors_in = self.words.tensors_in
        call.tensors = [*tensors_in(args), *tensors_in(kwargs)] if kwargs else list(tensors_in(args))
        if wants_backward:
            call.edges = self.edges_of(call.tensors)
        if not self.has_forward and self.has_stacks:  # a backward is looked up by the stack of its forward
            step.folder.add_stack(forward, self.collector.stacks.here())
        if not wants_forward or self.has_structure_only:
            return call
        if self.finder is not None:
            call.args, call.kwargs = self.finder.inputs(forward, args, kwargs)
            return call
        call.store = self.store_for(step, forward)
        if self.has_input:
            self.elements.inputs(call.inputs, forward, args, kwargs, call.store)
        return call

    def close(self, call: OpenCall, output: Any, parameters: dict[str, Any] | None = None) -> None:
        """Write the forward entry and hook the backward.

        Modules have `parameters`. Their backward lists the inputs that have a gradient; that of an API has a place
        for each input that could have one.
        """
        outputs = output if isinstance(output, tuple) else (output,)
        if self.exposed_in is call.step:
            self.elements.meter.forget()
        if call.forward is not None:
            self._write_forward(call, call.forward, outputs, parameters)
        if call.edges is None or call.backward is None:
            return
        done = self._backward_writer(call.step, call.backward, call.parents)
        self.watch_backward(call, outputs, done, is_module=parameters is not None)

    def edges_of(self, tensors: Sequence[Any]) -> Any:
        """Where gradients of the inputs will arrive; called before the call."""
        raise NotImplementedError

    def watch_backward(
        self, call: OpenCall, outputs: tuple, done: Callable[[list, list], None], *, is_module: bool
    ) -> None:
        """Arrange for `done` to be called with the gradients of the outputs and inputs."""
        raise NotImplementedError

    def finish_partial(self) -> None:
        """Write the incomplete rest of every backward: one that ended with an exception makes no final callback."""

    def _write_forward(
        self, call: OpenCall, name: str, outputs: tuple, parameters: dict[str, Any] | None
    ) -> None:
        pieces: Pieces = ["{"]
        if self.finder is not None:
            if not self.finder.found(name, (call.args, call.kwargs), outputs):
                return
            call.store = call.step.store
            self.elements.inputs(call.inputs, name, call.args, call.kwargs, call.store)
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

    def store_for(self, step: StepOutput, name: str) -> TensorStore | None:
        """Where to save the tensors of an entry; None if only statistics are wanted."""
        return step.store if self.selection.wants_tensor(name) else None

    def _backward_writer(self, step: StepOutput, name: str, parents: tuple) -> Callable[[list, list], None]:
        parent = backward_of(parents[-1]) if parents else None

        def done(grad_outputs: list, grad_inputs: list) -> None:
            try:
                if self.selection.has_scope and not self.selection.wants(name, _backwards(parents)):
                    return
                entry = step.next_pass(name)
                if self.has_structure_only:
                    self.put_backward(step, entry, [], parent)
                    return
                store = self.store_for(step, name)
                if self.finder is not None:
                    if not self.finder.found(entry, grad_outputs, grad_inputs):
                        return
                    store = step.store
                pieces: Pieces = ["{"]
                if self.has_input:
                    pieces.append('"input": ')
                    self.elements.listed(pieces, grad_outputs, f"{entry}.input", store)
                if self.has_output:
                    pieces.append(', "output": ' if self.has_input else '"output": ')
                    self.elements.listed(pieces, grad_inputs, f"{entry}.output", store)
                pieces.append("}")
                self.put_backward(step, entry, pieces, parent)
            except Exception as error:
                self.failed(error)

        return done

    def put_backward(self, step: StepOutput, name: str, pieces: Pieces, parent: str | None) -> None:
        """Write a backward entry that is complete."""
        self.collector.put(step, name, pieces, None, parent, self.has_parents)

    def gradient(self, step: StepOutput, entry: str, key: str, gradient: Any) -> Pieces:
        """The text of a parameter's gradient, in a list of one as in msProbe's dumps."""
        pieces: Pieces = ["["]
        self.elements.tensor(pieces, gradient, f"{entry}.{key}", self.store_for(step, entry))
        pieces.append("]")
        return pieces

    def failed(self, error: Exception) -> None:
        """Handle an error of the probe in the middle of a backward."""
        self.collector.guard("gradients of a call", error)


def _backwards(parents: Sequence[str]) -> list[str]:
    return [name for name in map(backward_of, parents) if name is not None]
