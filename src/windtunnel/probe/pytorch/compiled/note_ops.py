"""Operators that record a module's call ("notes"); a compiler keeps them in its graph, in order, though unused.

    traced hook ──> windtunnel::enter, windtunnel::leave in the graph ──> running graph ──> sink.enter, sink.leave
    autograd while the joint graph is traced ──> windtunnel::gradients in the backward graph ──> sink.gradients

The gradients are found as in eager code: the nodes of autograd between a module's inputs and outputs are hooked,
only that they are the nodes of the trace. So nothing is put between two modules, and in-place modules stay correct.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, Protocol

import torch

from windtunnel.probe.collect.call_gradients import Call as AnyCall
from windtunnel.probe.pytorch.eager.gradients import LEAF, Call, Edges

__all__ = ["Sink", "connect", "define_ops", "take_trace_notes", "trace_notes", "tracing_notes"]

_VALUES = "Tensor[] tensors, SymInt[] integers, float[] reals, str plan, str name"
_SCHEMAS = {
    # Each returns a tensor: inductor does not keep the order of operators that return nothing.
    "enter": f"enter({_VALUES}) -> Tensor",
    "leave": f"leave({_VALUES}) -> Tensor",
    "gradients": "gradients(Tensor[] tensors, Tensor call, str plan, str name) -> Tensor",
}


class Sink(Protocol):
    """Receives the notes of running graphs. `enter` begins a call of a module, `leave` ends it and returns its number."""

    def enter(self, name: str, value: Any) -> None: ...

    def leave(self, name: str, value: Any) -> int: ...

    def gradients(self, name: str, call: int, plan: str, tensors: list[torch.Tensor]) -> None: ...

    def failed(self, error: Exception) -> None: ...


class _Traced(threading.local):
    """Calls that have begun in a trace, and whether hooks may put notes into it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, str, Edges, list[bool]]] = []
        self.has_notes = True
        self.n_notes = 0
        self.without: list[str] = []  # graphs in the graph, whose modules are not noted


_library: torch.library.Library | None = None
_sink: Sink | None = None
_traced = _Traced()


def connect(sink: Sink | None) -> None:
    """Send the notes of all graphs to `sink`; None drops them."""
    global _sink
    _sink = sink


def define_ops() -> None:
    """Make the operators known to torch, once per process."""
    global _library
    if _library is not None:
        return
    from torch._library.effects import EffectType

    library = torch.library.Library("windtunnel", "DEF")
    for name, schema in _SCHEMAS.items():
        library.define(schema)
        qualified = f"windtunnel::{name}"
        torch.library.register_fake(qualified, _fake, lib=library)
        library._register_effectful_op(qualified, EffectType.ORDERED)
    for name, run, trace in (
        ("enter", _enter, _enter_traced),
        ("leave", _leave, _leave_traced),
        ("gradients", _gradients, None),
    ):
        library.impl(name, run, "CompositeExplicitAutograd")
        library.impl(name, run, "BackendSelect")  # a call without any tensor
        if trace is not None:
            library.impl(name, trace, "Autograd")
    _library = library


def trace_notes(wanted: bool) -> bool:
    """Whether hooks that are being traced in this thread put notes into the graph; returns what held before."""
    before, _traced.has_notes = _traced.has_notes, wanted
    return before


def tracing_notes() -> bool:
    """Asked by the hooks, while tracing: whether to put a note into the graph.

    Not into a graph in the graph (a checkpoint, a branch, a loop): torch runs those as often as it likes.
    """
    if not _traced.has_notes:
        return False
    from torch._dynamo.symbolic_convert import InstructionTranslator

    tracer = InstructionTranslator.current_tx().output.current_tracer
    if tracer.parent is None:
        _traced.n_notes += 1
        return True
    _traced.without.append(str(getattr(tracer, "source_target", None) or "a graph in the graph"))
    return False


def take_trace_notes() -> tuple[int, list[str]]:
    """How many notes were put into graphs since this was asked last, and where none could be put."""
    found = _traced.n_notes, sorted(set(_traced.without))
    _traced.n_notes, _traced.without = 0, []
    return found


def _fake(*_: Any) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64)


def _enter(tensors: list, integers: list, reals: list, plan: str, name: str) -> torch.Tensor:
    if _sink is not None:
        _sink.enter(name, (plan, tensors, integers, reals))
    return torch.zeros((), dtype=torch.int64)


def _leave(tensors: list, integers: list, reals: list, plan: str, name: str) -> torch.Tensor:
    number = _sink.leave(name, (plan, tensors, integers, reals)) if _sink is not None else -1
    return torch.full((), number, dtype=torch.int64)


def _gradients(tensors: list, call: torch.Tensor, plan: str, name: str) -> torch.Tensor:
    if _sink is not None:
        _sink.gradients(name, int(call), plan, tensors)
    return torch.zeros((), dtype=torch.int64)


def _enter_traced(tensors: list, integers: list, reals: list, plan: str, name: str) -> torch.Tensor:
    if torch.is_grad_enabled():
        trace, calls = _trace(), _traced.calls
        if calls and calls[-1][0] is not trace:
            calls.clear()  # left behind by a trace that was broken off
        calls.append((trace, name, Edges(tensors), [tensor.requires_grad for tensor in tensors]))
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.windtunnel.enter(tensors, integers, reals, plan, name)


def _leave_traced(tensors: list, integers: list, reals: list, plan: str, name: str) -> torch.Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        number = torch.ops.windtunnel.leave(tensors, integers, reals, plan, name)
    begun = _begun(name) if torch.is_grad_enabled() else None
    outputs = [tensor for tensor in tensors if tensor.grad_fn is not None]
    if begun is None or not outputs:
        return number
    edges, flags = begun

    def done(grad_outputs: list, grad_inputs: list) -> None:
        found = [gradient for gradient in (*grad_outputs, *grad_inputs) if gradient is not None]
        marks = ["".join("-" if g is None else "t" for g in side) for side in (grad_outputs, grad_inputs)]
        torch.ops.windtunnel.gradients(found, number, "/".join(marks), name)

    try:
        _TracedCall(edges, outputs, done, _finish_later, _failed, flags)
    except Exception as error:  # the graph is traced without this note
        _failed(error)
    return number


class _TracedCall(Call):
    """A call in a trace, where the inputs of the graph have a node that torch takes for a leaf and that is none."""

    __slots__ = ()

    def _walk(self, edges: Edges, nodes: dict[int, Any]) -> None:
        super()._walk(edges, nodes)
        for node in nodes.values():
            for position, (target, number) in enumerate(node.next_functions):
                found = edges.nodes.get((id(target), number))
                if found is not None and target._sequence_nr() == LEAF:
                    self.edges_of.setdefault(id(node), []).append((position, found[1]))


def _begun(name: str) -> tuple[Edges, list[bool]] | None:
    """The call of this name that began last in this trace, if any."""
    trace, calls = _trace(), _traced.calls
    for index in reversed(range(len(calls))):
        where, found, edges, flags = calls[index]
        if where is trace and found == name:
            del calls[index:]
            return edges, flags
    return None


def _trace() -> Any:
    return torch._guards.TracingContext.try_get()


def _finish_later(call: AnyCall, number: int) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(partial(call.finish, number))


def _failed(error: Exception) -> None:
    if _sink is not None:
        _sink.failed(error)
