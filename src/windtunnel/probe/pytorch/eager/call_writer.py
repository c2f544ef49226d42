"""Calls of torch: their gradients are those of the autograd nodes the call made.

open(args, kwargs) ──> edges of the inputs      close(output) ──> nodes of autograd hooked ──> backward runs ──> done

What is measured and written of a call is the same in every framework: `windtunnel.probe.collect.call_writer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from windtunnel.probe.collect.call_gradients import Call as AnyCall
from windtunnel.probe.collect.call_writer import CallWriter as AnyCallWriter
from windtunnel.probe.collect.call_writer import OpenCall
from windtunnel.probe.collect.collector import Collector
from windtunnel.probe.pytorch.eager.elements import WORDS, Elements, tensors_in
from windtunnel.probe.pytorch.eager.gradients import Call, Edges, current_pass

__all__ = ["CallWriter", "OpenCall"]


class CallWriter(AnyCallWriter):
    """Writes calls for one debugger."""

    words = WORDS
    is_recording = staticmethod(torch.is_grad_enabled)
    current_pass = staticmethod(current_pass)

    def __init__(self, collector: Collector, elements: Elements) -> None:
        super().__init__(collector, elements)
        self._partial: dict[int, set[AnyCall]] = {}  # backward pass -> calls of which some nodes have run

    def edges_of(self, tensors: Sequence[torch.Tensor]) -> Edges:
        return Edges(tensors)

    def watch_backward(
        self, call: OpenCall, outputs: tuple, done: Callable[[list, list], None], *, is_module: bool
    ) -> None:
        """Hook the nodes of the call.

        The backward of a module lists the inputs that have a gradient; that of an API has a place for each input that
        could have one.
        """
        tensors = [tensor for tensor in tensors_in(outputs) if tensor.grad_fn is not None]
        if not tensors:
            return
        if is_module:
            keep = [tensor.requires_grad for tensor in call.tensors]
        else:
            keep = [tensor.is_floating_point() or tensor.is_complex() for tensor in call.tensors]
        Call(call.edges, tensors, done, self._begun, self.failed, keep, by_edge=not is_module)

    def _begun(self, call: AnyCall, task: int) -> None:
        if task not in self._partial:
            self._partial[task] = set()
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._finish(task))
        self._partial[task].add(call)

    def _finish(self, task: int) -> None:
        """At the end of a backward: write what some nodes never completed (their outputs were not used)."""
        for call in self._partial.pop(task, ()):
            try:
                call.finish(task)
            except Exception as error:
                self.failed(error)

    def finish_partial(self) -> None:
        """Write what is incomplete of every backward: one that ended by an exception calls nobody back."""
        for task in list(self._partial):
            self._finish(task)
