"""The autograd nodes that one call of MindSpore has made.

    tensors that went in ──> their edges ─┐
    tensors that came out ──> their nodes ┴──> nodes between

MindSpore numbers its nodes as they are made, over all calls of a process; a call's own are newer than every node that
was seen before it. What is done with them is the same in every framework: `windtunnel.probe.collect.call_gradients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspore import Tensor
from mindspore.common import dtype
from mindspore.graph.api import _pynative_executor

from windtunnel.probe.collect.call_gradients import Call as AnyCall

__all__ = ["DIFFERENTIABLE", "Call", "Edges", "current_pass", "node_of", "running_node"]

current_pass = _pynative_executor.get_current_autodiff_engine_id
DIFFERENTIABLE = frozenset(
    getattr(dtype, name)
    for name in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
    if hasattr(dtype, name)
)
_COPY = (
    "Contiguous"  # of a view, before an operator that wants it in one piece: its gradient is that of the view
)
_LEAF = 2**64 - 1  # the sequence number of a node that accumulates into a leaf


class _Seen:
    """The newest node of this process that was ever looked at, and the one that a backward has run last."""

    newest = -1
    running = 0


def running_node() -> int:
    """The key of the hooked node that a backward has run last."""
    return _Seen.running


def node_of(tensor: Tensor) -> Any:
    """The node that made a tensor; None if it has none or is a leaf (a parameter, an argument of the function)."""
    node = tensor._grad_node
    return None if node is None or node._sequence_nr() == _LEAF else node


class Edges:
    """Where gradients of the inputs will arrive; must be made before the call, for in-place calls move them."""

    __slots__ = ("leaves", "n", "nodes", "since")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.n = len(tensors)
        self.nodes: dict[
            tuple[int, int], tuple[Any, list[int]]
        ] = {}  # (key of node, output) -> node kept alive
        self.leaves: dict[int, tuple[Any, list[int]]] = {}
        for index, tensor in enumerate(tensors):
            node = tensor._grad_node
            if node is None or tensor.dtype not in DIFFERENTIABLE:
                continue
            number = node._sequence_nr()
            if number == _LEAF:
                self.leaves.setdefault(node._unique_id(), (node, []))[1].append(index)
            else:
                if number > _Seen.newest:
                    _Seen.newest = number
                key = node._unique_id(), tensor._output_index
                self.nodes.setdefault(key, (node, []))[1].append(index)
        self.since = _Seen.newest + 1

    def find(self, node: Any, nr: int) -> tuple[Any, list[int]] | None:
        """Which inputs are the output `nr` of a node."""
        key = node._unique_id()
        return self.leaves.get(key) if node._sequence_nr() == _LEAF else self.nodes.get((key, nr))


class Call(AnyCall):
    """The backward of one call of MindSpore."""

    __slots__ = ()
    current_pass = staticmethod(current_pass)

    def _outputs(self, outputs: Sequence[Tensor]) -> dict[int, Any]:
        nodes: dict[int, Any] = {}
        for index, tensor in enumerate(outputs):
            node = node_of(tensor)
            if node is None:
                continue
            _Seen.newest = max(_Seen.newest, node._sequence_nr())
            key = node._unique_id()
            nodes.setdefault(key, node)
            self.outputs_of.setdefault(key, []).append((tensor._output_index, index))
        return nodes

    def _walk(self, edges: Edges, nodes: dict[int, Any]) -> None:
        stack = list(nodes.items())
        since = edges.since
        while stack:
            mine, node = stack.pop()
            if node._sequence_nr() < since:
                continue  # made before the call: an input, or something the call took from elsewhere
            for position, (target, nr) in enumerate(node.next_functions):
                if target is None:
                    continue
                key, number = target._unique_id(), target._sequence_nr()
                if number >= since and number != _LEAF and target.name() == _COPY:
                    ((behind, behind_nr),) = target.next_functions
                    if behind is not None and edges.find(behind, behind_nr) is not None:
                        target, nr = behind, behind_nr
                        key, number = target._unique_id(), target._sequence_nr()
                found = edges.find(target, nr)
                if number == _LEAF:
                    number = -1
                if found is not None:
                    self.edges_of.setdefault(mine, []).append((position, found[1]))
                elif number >= since and key not in nodes:
                    nodes[key] = target
                    stack.append((key, target))
        self.hand_on(edges)

    def ran(self, key: int, grad_inputs: Sequence, grad_outputs: Sequence) -> None:
        _Seen.running = key
        super().ran(key, grad_inputs, grad_outputs)

    def _last(self, nodes: dict[int, Any]) -> frozenset[int]:
        """As always; if no input gets a gradient though one could, the call is over with the first node it made."""
        if self.edges_of or not nodes or not any(self.keep):
            return super()._last(nodes)
        return frozenset((min(nodes, key=lambda key: nodes[key]._sequence_nr()),))

    def _sum(self, one: Tensor, other: Tensor) -> Tensor:
        return Tensor(one.asnumpy() + other.asnumpy())
