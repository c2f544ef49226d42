"""The autograd nodes that one call of torch has made.

    tensors that went in ──> their edges ─┐
    tensors that came out ──> their nodes ┴──> nodes between

The nodes a call made have sequence numbers that are not older than the call. What is done with them is the same in
every framework: `windtunnel.probe.collect.call_gradients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from windtunnel.probe.collect.call_gradients import Call as AnyCall

__all__ = ["Call", "Edges", "current_pass", "sequence_number"]

current_pass = torch._C._current_graph_task_id  # threads may run backward at the same time
sequence_number = torch._C._autograd._get_sequence_nr
LEAF = 2**64 - 1  # the sequence number of the node that accumulates into a leaf


class Edges:
    """Where gradients of the inputs will arrive; must be made before the call, for in-place calls move them."""

    __slots__ = ("leaves", "n", "nodes", "since")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.n = len(tensors)
        self.since = sequence_number()
        self.nodes: dict[
            tuple[int, int], tuple[Any, list[int]]
        ] = {}  # (id of node, output) -> node kept alive
        self.leaves: dict[int, tuple[Any, list[int]]] = {}
        for index, tensor in enumerate(tensors):
            if not tensor.requires_grad:
                continue
            node = tensor.grad_fn
            if node is None:
                self.leaves.setdefault(id(tensor), (tensor, []))[1].append(index)
            else:
                self.nodes.setdefault((id(node), tensor.output_nr), (node, []))[1].append(index)

    def __bool__(self) -> bool:
        return bool(self.nodes or self.leaves)


class Call(AnyCall):
    """The backward of one call of torch."""

    __slots__ = ()
    current_pass = staticmethod(current_pass)

    def _outputs(self, outputs: Sequence[torch.Tensor]) -> dict[int, Any]:
        nodes: dict[int, Any] = {}
        for index, tensor in enumerate(outputs):
            node = tensor.grad_fn
            if node is None:
                continue
            nodes[id(node)] = node
            self.outputs_of.setdefault(id(node), []).append((tensor.output_nr, index))
        return nodes

    def _walk(self, edges: Edges, nodes: dict[int, Any]) -> None:
        """Add every node between the outputs and the inputs to `nodes`; note which edges lead to an input."""
        stack = list(nodes.values())
        since, leaves, inner = edges.since, edges.leaves, edges.nodes
        while stack:
            node = stack.pop()
            if node._sequence_nr() < since:
                continue  # made before the call: an input, or something the call took from elsewhere
            for position, (target, nr) in enumerate(node.next_functions):
                if target is None:
                    continue
                key = id(target)
                number = target._sequence_nr()
                if number == LEAF:
                    found = leaves.get(id(target.variable)) if leaves else None
                    number = -1
                else:
                    found = inner.get((key, nr))
                if found is not None:
                    self.edges_of.setdefault(id(node), []).append((position, found[1]))
                elif number >= since and key not in nodes:
                    nodes[key] = target
                    stack.append(target)
        self.hand_on(edges)

    def _sum(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return one + other
