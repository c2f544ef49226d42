"""CUDA graphs of compiled code (`mode="reduce-overhead"`): the memory pool that they share and never give back.

a compiled graph is called ──> on the pool's own stream: copies of its inputs that may move, then its code
                               (first call: warm-up, without copies)

The rules are those of torch/_inductor/cudagraph_trees.py. All graphs of a device share one private pool. A call allocates
in it: copies of the inputs that are neither weights nor outputs of an earlier graph (freed at their last use, like any
buffer), buffers and outputs. What outputs are left when a new iteration begins is freed, whoever holds it. A replay
allocates nothing for the real allocator, as its blocks are where they were recorded; here the code runs again and takes the
same blocks, so what the pool has reserved is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch._dynamo.mutation_guard import GenerationTracker
from torch._inductor import cudagraph_trees

from windtunnel.capture.pytorch.tensors.storage import SimStorage, new_tensor, sim_of, sims, world
from windtunnel.pool_streams import pool_stream

__all__ = ["graphed", "install_cuda_graphs"]


@dataclass
class _Graph:
    """A compiled function that is captured and replayed."""

    code: Callable[[list[Any]], Sequence[Any]]
    static: frozenset[int]  # inputs that stay where they are: weights, buffers, what forward saved
    written: Sequence[int]  # inputs that it writes to
    is_forward: bool
    is_backward: bool
    # The sizes (of dynamic shapes) for which it has run: each is a graph of its own.
    warm: set[tuple[int, ...]] = field(default_factory=set)


class _Pool:
    """The pool of a device, and the calls since the iteration began: a path in the tree of graphs."""

    def __init__(self, device_index: int) -> None:
        device = torch.device(world.device_type, device_index)
        self.stream: Any = torch.cuda.Stream(device, number=pool_stream(device_index))
        self.generation = -1
        self.is_warming_up = False  # after a warm-up, all calls of this iteration are warm-ups
        self.has_forward_without_backward = False
        # Of this path: address of torch's storage -> number of the allocation.
        self.outputs: dict[int, int] = {}

    def run(self, graph: _Graph, inputs: list[Any]) -> Sequence[Any]:
        """Call the function as CUDAGraphTreeManager does."""
        self._end_path_if_possible()
        if any(i not in graph.static and not self._holds(inputs[i]) for i in graph.written):
            world.recorder.notice(
                "a compiled graph writes to an input that is neither a weight nor another graph's output: torch runs it"
                " without a CUDA graph"
            )
            result = graph.code(inputs)
        else:
            result = self._run_in_pool(graph, inputs)
        if graph.is_forward:
            self.has_forward_without_backward = True
        elif graph.is_backward:
            self.has_forward_without_backward = False
        return result

    @property
    def current_node(self) -> _Pool:
        return self

    def _is_cuda_graph_recorded_tensor(self, tensor: torch.Tensor) -> bool:
        """Asked by Dynamo of an optimizer's tensors."""
        return self._holds(tensor)

    def set_to_running_backward(self) -> None:
        """A backward that is no CUDA graph belongs to a forward that is one."""
        self.has_forward_without_backward = False

    def _run_in_pool(self, graph: _Graph, inputs: list[Any]) -> Sequence[Any]:
        sizes = tuple(each for each in inputs if isinstance(each, int))
        is_recorded = sizes in graph.warm and not self.is_warming_up
        self.is_warming_up = not is_recorded
        graph.warm.add(sizes)
        before = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(before)
        with torch.cuda.stream(self.stream):
            given = self._with_copies(graph, inputs) if is_recorded else list(inputs)
            inputs.clear()
            known = {sim.id for each in given if (sim := _storage(each)) is not None}
            result = graph.code(given)
        before.wait_stream(self.stream)
        for each in result:
            sim = _storage(each)
            if sim is not None and sim.id not in known:
                self.outputs[sim.key] = sim.id
        self.generation = _generation()
        return result

    def _with_copies(self, graph: _Graph, inputs: list[Any]) -> list[Any]:
        """The inputs; of those that may be elsewhere next time, a copy in the pool."""
        given = list(inputs)
        moving = [
            i
            for i, each in enumerate(inputs)
            if isinstance(each, torch.Tensor) and i not in graph.static and not self._holds(each)
        ]
        for i in moving:
            each = inputs[i]
            given[i] = new_tensor(tuple(each.shape), tuple(each.stride()), each.dtype, each.device)
        if moving:
            with torch.no_grad():
                torch._foreach_copy_([given[i] for i in moving], [inputs[i] for i in moving])
        return given

    def _holds(self, value: Any) -> bool:
        """Whether this is an output of a graph of the current path, which is where it was when it was recorded."""
        sim = _storage(value)
        return sim is not None and self.outputs.get(sim.key) == sim.id

    def _end_path_if_possible(self) -> None:
        live = [sims[key] for key, id in self.outputs.items() if key in sims and sims[key].id == id]
        is_new = self.generation != _generation() and (
            cudagraph_trees.MarkStepBox.mark_step_counter != 0 or not self.has_forward_without_backward
        )
        if is_new or not live:
            for sim in live:
                _free(sim)
            self.outputs.clear()
            self.is_warming_up = False


_pools: dict[int, _Pool] = {}


def graphed(
    model: Callable[[list[Any]], Sequence[Any]],
    static_input_idxs: Collection[int] = (),
    *,
    device_index: int,
    is_backward: bool,
    is_inference: bool,
    mutated_input_idxs: Sequence[int] = (),
    **_: Any,
) -> Callable[[list[Any]], Sequence[Any]]:
    """In place of `torch._inductor.compile_fx.cudagraphify`."""
    is_forward = not is_backward and not is_inference
    graph = _Graph(model, frozenset(static_input_idxs), mutated_input_idxs, is_forward, is_backward)
    pool = _pools.setdefault(device_index or 0, _Pool(device_index or 0))
    return partial(pool.run, graph)


def install_cuda_graphs() -> None:
    """Once, before the first compilation."""
    from torch._inductor import compile_fx

    compile_fx.cudagraphify = graphed
    cudagraph_trees.get_manager = lambda index, create_if_none_exists=True: _pools.get(index or 0)  # type: ignore[assignment, return-value]


def _generation() -> int:
    """Which iteration this is: counted by the program's own marks, or by calls of compiled code."""
    return cudagraph_trees.MarkStepBox.mark_step_counter or GenerationTracker.generation


def _storage(value: Any) -> SimStorage | None:
    return sim_of(value) if isinstance(value, torch.Tensor) else None


def _free(sim: SimStorage) -> None:
    """The pool takes an output back, although the program may still hold the tensor."""
    if sim.device_index >= 0:
        world.recorder.write_free(sim.id, sim.device_index)
        sim.device_index = -1
