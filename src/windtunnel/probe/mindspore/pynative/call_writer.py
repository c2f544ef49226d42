"""Calls of MindSpore: their gradients are those of the autograd nodes the call made.

open(args, kwargs) ──> edges of the inputs      close(output) ──> nodes of autograd hooked ──> backward runs ──> done

What is measured and written of a call is the same in every framework: `windtunnel.probe.collect.call_writer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mindspore import Tensor
from mindspore.graph.api import _pynative_executor

from windtunnel.probe.collect.call_gradients import Call as AnyCall
from windtunnel.probe.collect.call_writer import CallWriter as AnyCallWriter
from windtunnel.probe.collect.call_writer import OpenCall
from windtunnel.probe.collect.collector import Collector, StepOutput
from windtunnel.probe.mindspore.pynative.elements import WORDS, Elements, tensors_in
from windtunnel.probe.mindspore.pynative.gradients import (
    DIFFERENTIABLE,
    Call,
    Edges,
    current_pass,
    node_of,
    running_node,
)

__all__ = ["CallWriter", "OpenCall"]


class CallWriter(AnyCallWriter):
    """Writes calls for one debugger."""

    words = WORDS
    is_recording = staticmethod(_pynative_executor.requires_grad)
    current_pass = staticmethod(current_pass)

    def __init__(self, collector: Collector, elements: Elements) -> None:
        super().__init__(collector, elements)
        self._partial: dict[int, set[AnyCall]] = {}  # backward pass -> calls of which some nodes have run
        # backward pass -> finished cells with their last nodes, not yet written
        self._held: dict[int, list[tuple]] = {}
        self._holds = False  # the entry of now is one of these

    def edges_of(self, tensors: Sequence[Tensor]) -> Edges:
        return Edges(tensors)

    def watch_backward(
        self, call: OpenCall, outputs: tuple, done: Callable[[list, list], None], *, is_module: bool
    ) -> None:
        """Hook the nodes of the call.

        The backward of a cell or an API has a place for each tensor that went in, null for one without a gradient; of
        one that got no floating-point tensor it has none. That of a primitive lists the gradients there are.
        """
        tensors = [tensor for tensor in tensors_in(outputs) if node_of(tensor) is not None]
        if not tensors:
            return
        has_places = any(tensor.dtype in DIFFERENTIABLE for tensor in call.tensors)
        keep = [has_places] * len(call.tensors)
        if call.backward is not None and call.backward.startswith("Primitive."):
            done = _only_those_there_are(done)
        elif is_module and has_places:
            done = self._after_parameters(done)
        Call(call.edges, tensors, done, self._begun, self.failed, keep)

    def _after_parameters(self, done: Callable[[list, list], None]) -> Callable[[list, list], None]:
        """The backward of a cell is written after the gradients of its parameters.

        These reach the parameters right after the cell's last node has run, and before any other node does.
        """

        def write(grad_outputs: list, grad_inputs: list) -> None:
            self._holds = True
            try:
                done(grad_outputs, grad_inputs)
            finally:
                self._holds = False

        return write

    def put_backward(self, step: StepOutput, name: str, pieces: list, parent: str | None) -> None:
        engine, node = self._engine(), running_node()
        held = self._held[engine]
        if held and not (self._holds and held[-1][0] == node):
            self._write_held(engine)
        if self._holds:
            self._held[engine].append((node, (step, name, pieces, parent)))
        else:
            super().put_backward(step, name, pieces, parent)

    def gradient(self, step: StepOutput, entry: str, key: str, gradient: Tensor) -> list:
        """The gradient of a parameter; if of another cell than those that are held, a later node has run."""
        engine = self._engine()
        cell = entry.rpartition(".parameters_grad.")[0]
        begins = f"{cell}.backward.", f"{cell}.pass"
        if not any(name.startswith(begins) for _, (_, name, _, _) in self._held[engine]):
            self._write_held(engine)
        return super().gradient(step, entry, key, gradient)

    def _write_held(self, engine: int) -> None:
        held, self._held[engine] = self._held.get(engine, []), []
        for _, entry in held:
            super().put_backward(*entry)

    def _engine(self) -> int:
        """The backward pass of now; when it ends, what is left of it is written."""
        engine = current_pass()
        if engine not in self._held:
            self._held[engine], self._partial[engine] = [], set()
            if engine >= 0:
                _pynative_executor.queue_backward_final_callback(lambda: self._finish(engine))
        return engine

    def _begun(self, call: AnyCall, engine: int) -> None:
        self._engine()
        self._partial[engine].add(call)

    def _finish(self, engine: int) -> None:
        """At the end of a backward: write what some nodes never completed (their outputs were not used)."""
        for call in self._partial.get(engine, ()):
            try:
                call.finish(engine)
            except Exception as error:
                self.failed(error)
        self._write_held(engine)
        self._partial.pop(engine, None)
        self._held.pop(engine, None)

    def finish_partial(self) -> None:
        """Write what is incomplete of every backward: one that ended by an exception calls nobody back."""
        for engine in list(self._held):
            self._finish(engine)


def _only_those_there_are(done: Callable[[list, list], None]) -> Callable[[list, list], None]:
    def write(grad_outputs: list, grad_inputs: list) -> None:
        done(
            [gradient for gradient in grad_outputs if gradient is not None],
            [gradient for gradient in grad_inputs if gradient is not None],
        )

    return write
