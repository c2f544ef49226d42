"""The gradients of one call, taken from the autograd nodes it created, without adding a node.

    tensors that went in ──> their edges ─┐
    tensors that came out ──> their nodes ┴──> nodes between ──> hooks ──> gradients, in argument order

A hook on a tensor would see the sum over every use of it; the frameworks' module backward hooks add an identity node,
which changes the order of accumulation. So a framework walks from the outputs to the edges of the inputs, over the
nodes that the call itself created, and this hooks only those that pass a gradient to an input. Nothing is inserted:
losses and gradients stay bit-identical.

A node is known by a key, and has `next_functions`, `_sequence_nr()` and `register_hook(hook)`; the hook receives the
gradients that leave the node and those that arrived. Both torch and MindSpore have such nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Call", "Done"]

Done = Callable[[list, list], None]  # gradients of the outputs, gradients of the inputs


class Call:
    """The backward of one call: `done` is called once every hooked node has run, or by `finish`.

    `begun` is called when the first of several nodes has run, so that the owner can finish what stays incomplete.
    A retained graph may run again, in part, for another loss or for the gradient of a gradient: the gradients of each
    pass are kept separate and reported separately. `edges.n` is the number of inputs; `edges.nodes` says which inputs
    are the output `nr` of a node: (key, nr) ──> (node, inputs).
    """

    __slots__ = (
        "begun",
        "done",
        "edges_of",
        "is_by_edge",
        "keep",
        "last",
        "n_inputs",
        "n_outputs",
        "outputs_of",
        "passes",
    )

    current_pass: Callable[[], int]  # the number of the backward that is running in this thread

    def __init__(
        self,
        edges: Any,
        outputs: Sequence[Any],
        done: Done,
        begun: Callable[[Call, int], None],
        guard: Callable[[Exception], None],
        keep: Sequence[bool],
        *,
        by_edge: bool = False,
    ) -> None:
        self.done = done
        self.begun = begun
        self.keep = (
            keep  # inputs that have a place in the result, unless results are numbered as the node does
        )
        self.n_inputs, self.n_outputs = edges.n, len(outputs)
        self.passes: dict[int, _Pass] = {}  # backward passes in progress
        self.outputs_of: dict[int, list[tuple[int, int]]] = {}  # hooked node -> (its output, our output)
        self.edges_of: dict[int, list[tuple[int, list[int]]]] = {}  # hooked node -> (its edge, our inputs)
        nodes = self._outputs(outputs)
        self._walk(edges, nodes)
        self.last = self._last(nodes)
        self.is_by_edge = by_edge and self._number_by_edge(nodes)
        self._split_shared()
        for key in self.last.union(self.outputs_of):
            nodes[key].register_hook(_Hook(self, key, guard))

    def _outputs(self, outputs: Sequence[Any]) -> dict[int, Any]:
        """The nodes of the outputs by key; fill `outputs_of`: which output of the call is which output of a node."""
        raise NotImplementedError

    def _walk(self, edges: Any, nodes: dict[int, Any]) -> None:
        """Add every node between outputs and inputs to `nodes`; fill `edges_of`; then call `hand_on`."""
        raise NotImplementedError

    def _sum(self, one: Any, other: Any) -> Any:
        """Add two gradients without being recorded."""
        raise NotImplementedError

    def hand_on(self, edges: Any) -> None:
        """Handle inputs that are returned unchanged: the output's gradient is the input's gradient.

        An input that the call also uses cannot be separated from the output that it is: autograd sees one tensor, whose
        gradient includes what came through the call. Only what came through the call is reported.
        """
        used = {id(indices) for inner in self.edges_of.values() for _, indices in inner}
        for (node, nr), (_, indices) in edges.nodes.items():
            same = [pair for pair in self.outputs_of.get(node, ()) if pair[0] == nr]
            if not same:
                continue
            if id(indices) not in used:
                self.edges_of.setdefault(node, []).extend((-1 - index, indices) for _, index in same[:1])
                continue
            rest = [pair for pair in self.outputs_of[node] if pair not in same]
            if rest:
                self.outputs_of[node] = rest
            else:
                del self.outputs_of[node]

    def _last(self, nodes: dict[int, Any]) -> frozenset[int]:
        """The nodes after which all gradients have arrived: those before an input, and outputs that run even later.

        Autograd runs nodes in the reverse order of their creation.
        """
        if not self.edges_of:
            return frozenset(self.outputs_of)
        first = min(nodes[key]._sequence_nr() for key in self.edges_of)
        return frozenset(self.edges_of).union(
            key for key in self.outputs_of if nodes[key]._sequence_nr() < first
        )

    def ran(self, key: int, grad_inputs: Sequence, grad_outputs: Sequence) -> None:
        """One hooked node has run."""
        number = self.current_pass()
        found = self.passes.get(number)
        is_first = found is None
        if found is None:
            found = self.passes[number] = _Pass(self)
        for nr, index in self.outputs_of.get(key, ()):
            if nr < len(grad_outputs):
                found.grad_outputs[index] = grad_outputs[nr]
        for position, indices in self.edges_of.get(key, ()):
            gradient = found.grad_outputs[-1 - position] if position < 0 else grad_inputs[position]
            if gradient is not None:
                self._add(found.grad_inputs, indices[0], gradient)
        found.waiting.discard(key)
        if not found.waiting:
            self.finish(number)
        elif is_first:
            self.begun(self, number)

    def _number_by_edge(self, nodes: dict[int, Any]) -> bool:
        """A call that is one node, with its edges in argument order: count the gradients as the node does.

        So a convolution has (input, weight, bias) and an embedding only (weight): index tensors and buffers have no
        gradient and therefore no place.
        """
        if len(self.edges_of) != 1 or self.edges_of.keys() != self.outputs_of.keys():
            return False
        ((key, edges),) = self.edges_of.items()
        order = [indices[0] for _, indices in edges]
        if order != sorted(order) or any(position < 0 for position, _ in edges):
            return False
        self.n_inputs = len(nodes[key].next_functions)
        self.edges_of = {key: [(position, [position]) for position, _ in edges]}
        return True

    def _split_shared(self) -> None:
        """A tensor passed twice to a single node (x * x) has an edge per place: one gradient each, in order.

        Where a call is several nodes, its uses cannot be separated, and the first place gets the sum.
        """
        if len(self.edges_of) != 1:
            return
        (edges,) = self.edges_of.values()
        shared = [indices for _, indices in edges if len(indices) > 1]
        for indices in {id(group): group for group in shared}.values():
            mine = [number for number, (_, group) in enumerate(edges) if group is indices]
            if len(mine) == len(indices):
                for number, index in zip(mine, indices, strict=True):
                    edges[number] = (edges[number][0], [index])

    def _add(self, gradients: list, index: int, gradient: Any) -> None:
        known = gradients[index]
        gradients[index] = gradient if known is None else self._sum(known, gradient)

    def finish(self, number: int) -> None:
        """Report the gradients of a pass, unless that was done already."""
        found = self.passes.pop(number, None)
        if found is None:
            return
        inputs = found.grad_inputs
        if not self.is_by_edge:
            inputs = [gradient for gradient, is_kept in zip(inputs, self.keep, strict=True) if is_kept]
        self.done(found.grad_outputs, inputs)


class _Pass:
    """The gradients of one backward so far, and the nodes of the call that have yet to run."""

    __slots__ = ("grad_inputs", "grad_outputs", "waiting")

    def __init__(self, call: Call) -> None:
        self.grad_outputs: list = [None] * call.n_outputs
        self.grad_inputs: list = [None] * call.n_inputs
        self.waiting = set(call.last)


class _Hook:
    """Called by autograd with the gradients of one node; holds no node, or the graph would never be freed."""

    __slots__ = ("call", "guard", "key")

    def __init__(self, call: Call, key: int, guard: Callable[[Exception], None]) -> None:
        self.call = call
        self.key = key
        self.guard = guard

    def __call__(self, grad_inputs: Sequence, grad_outputs: Sequence) -> None:
        try:
            self.call.ran(self.key, grad_inputs, grad_outputs)
        except Exception as error:  # errors of the probe never reach the user's backward
            self.guard(error)
