"""Level L2: every kernel that runs, forward and backward, observed by a torch dispatch mode.

    F.linear(x, w, b) ──> aten.t, aten.addmm ──> mode ──> "Aten.addmm.0.forward": inputs, outputs
    loss.backward()   ──> aten.mm, aten.sum  ──> mode ──> "Aten.mm.0.backward": inputs, outputs

Parents are the API and the module that a kernel ran in. A backward kernel belongs to the call whose autograd node is
running: the number of that node was recorded when the call created it.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.probe.collect.collector import Collector, StepOutput
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.pytorch.eager.call_writer import CallWriter
from windtunnel.probe.pytorch.eager.gradients import sequence_number
from windtunnel.probe.pytorch.eager.mode_stack import is_on, take_off

__all__ = ["KernelMode", "KernelSwitch"]

# No computation: memory without values, questions, and aliases whose schema does not say so.
_NOT_KERNELS = frozenset(
    """
    empty empty_like empty_strided new_empty new_empty_strided empty_permuted resize_ resize_as_ set_ record_stream
    detach detach_ alias lift lift_fresh _unsafe_view _reshape_alias _local_scalar_dense item is_same_size
    is_pinned _has_same_storage_numel sym_size sym_stride sym_numel sym_storage_offset size stride
    """.split()
)
_QUIET_NAMESPACES = ("profiler", "prim", "prims")
_COMMUNICATION = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
_TRACING_TYPES = ("FakeTensor", "FunctionalTensor")  # tensors of a running compiler: nothing is computed


class KernelMode(TorchDispatchMode):
    """Records the kernels of the threads it is on in."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps every call of the mode, and imports its compiler to do so

    def __init__(self, collector: Collector, writer: CallWriter, scopes: Scopes) -> None:
        super().__init__()
        self.collector = collector
        self.writer = writer
        self.scopes = scopes
        self.switch = _Switch()
        self.has_views = collector.config.risk_level == "ALL"
        self._kernels: dict[Any, _Kernel | None] = {}
        self._own: dict[type, int] = {}
        self._places = _Places()
        self._noted: set[str] = set()  # calls whose parents are in construct.json already

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kind = self._kind(types) if types else _PLAIN
        if kind is _WRAPPER:
            return NotImplemented  # DTensor and its like: what they run on their parts are the kernels
        step = self.collector.step
        if step is None or not self.switch.is_on or self.scopes.is_quiet or kind is _TRACING:
            return func(*args, **kwargs)
        call = None
        try:
            call = self._begin(step, func, args, kwargs)
        except Exception as error:
            self.collector.guard(f"the inputs of {func}", error)
        result = func(*args, **kwargs)
        if call is not None:
            try:
                call.end(result)
            except Exception as error:
                self.collector.guard(f"the outputs of {call.entry}", error)
        return result

    def end_step(self) -> None:
        self._places.clear()
        self._noted.clear()

    def _kind(self, types: Sequence[type]) -> int:
        kinds = [self._own[kind] if kind in self._own else self._learn_type(kind) for kind in types]
        return max(kinds)

    def _learn_type(self, kind: type) -> int:
        if kind.__name__ in _TRACING_TYPES:
            found = _TRACING
        elif getattr(kind, "__torch_dispatch__", None) in (None, torch._C._disabled_torch_dispatch_impl):
            found = _PLAIN
        else:
            found = _WRAPPER
        self._own[kind] = found
        return found

    def _begin(self, step: StepOutput, func: Any, args: tuple, kwargs: dict) -> _KernelCall | None:
        is_backward = torch._C._current_graph_task_id() != -1 and not (
            torch.is_grad_enabled() and self.scopes.stack  # a checkpoint computes its forward again
        )
        if is_backward:
            parents: tuple[str, ...] = self._places.of_running_node()
        else:
            parents = tuple(self.scopes.stack)
            if torch.is_grad_enabled():
                self._places.note(parents)
        kernel = self._kernels[func] if func in self._kernels else self._learn(func)
        writer = self.writer
        if kernel is None or not (writer.has_backward if is_backward else writer.has_forward):
            return None
        name = kernel.name
        # Counted apart: forward numbers stay the same whether or not a backward ran in between.
        if is_backward:
            entry = f"{name}.{step.number(f'{name}.backward')}.backward"
        else:
            entry = f"{name}.{step.number(f'{name}.forward')}.forward"
        selection = self.collector.selection
        if not selection.is_open and not selection.wants(entry, parents):
            return None
        self._note_parents(step, parents)
        return _KernelCall(self, step, kernel, entry, parents, *kernel.inputs(args, kwargs))

    def _learn(self, func: Any) -> _Kernel | None:
        kernel = None
        if isinstance(func, OpOverload):
            space, _, op = func._schema.name.partition("::")
            is_move = func.is_view or torch.Tag.inplace_view in func.tags or op in _NOT_KERNELS
            if space not in _QUIET_NAMESPACES and (self.has_views or not is_move):
                kernel = _Kernel(func, space, op)
        self._kernels[func] = kernel
        return kernel

    def _note_parents(self, step: StepOutput, parents: tuple[str, ...]) -> None:
        above = None
        for name in parents:
            if name not in self._noted:
                self._noted.add(name)
                step.folder.add_parent(name, above)
            above = name

    def for_thread(self) -> KernelMode:
        """The same for another thread: torch keeps in a mode what was on before it in its thread."""
        twin = copy.copy(self)
        for flags in _FLAGS:
            setattr(twin, flags, deque([False]))
        return twin


class _Switch:
    """Shared by the modes of all threads: a thread that outlives stop keeps its mode, which then does nothing."""

    is_on = False


_PLAIN, _WRAPPER, _TRACING = range(3)  # with several kinds among the arguments, the largest counts


class _Kernel:
    """What is known of a kernel by its schema."""

    __slots__ = ("has_output", "hidden", "is_mutable", "name")

    def __init__(self, func: OpOverload, space: str, op: str) -> None:
        self.name = f"{'Aten' if space == 'aten' else space}.{op}"
        is_sent = space in _COMMUNICATION
        self.is_mutable = func._schema.is_mutable or is_sent  # the schemas of collectives do not say so
        # Memory that is only written into holds anything before: not an input, and different in every run.
        self.hidden = frozenset(
            key
            for index, argument in enumerate(func._schema.arguments)
            if argument.is_out or (is_sent and (argument.name.startswith("out") or op.startswith("recv")))
            for key in (index, argument.name)
        )
        # A collective returns before anything has arrived; its result is that of the kernel that waits.
        self.has_output = not is_sent or op == "wait_tensor"

    def inputs(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if not self.hidden:
            return args, kwargs
        return (
            tuple(None if index in self.hidden else value for index, value in enumerate(args)),
            {key: None if key in self.hidden else value for key, value in kwargs.items()},
        )


class _KernelCall:
    """A kernel that is about to run: its inputs are taken now, for it may overwrite them."""

    __slots__ = (
        "entry",
        "frames",
        "inputs",
        "kernel",
        "mode",
        "parent",
        "pieces",
        "step",
        "store",
    )

    def __init__(
        self,
        mode: KernelMode,
        step: StepOutput,
        kernel: _Kernel,
        entry: str,
        parents: tuple[str, ...],
        args: tuple,
        kwargs: dict,
    ) -> None:
        self.mode = mode
        self.step = step
        self.kernel = kernel
        self.entry = entry
        self.parent = parents[-1] if parents else None
        self.pieces: list = []
        writer = mode.writer
        self.store = step.store if writer.selection.wants_tensor(entry) else None
        self.frames = (
            mode.collector.stacks.here() if writer.has_stacks and not entry.endswith(".backward") else None
        )
        self.inputs: tuple[tuple, dict] = ((), {})
        if writer.finder is not None:
            self.inputs = writer.finder.inputs(entry, args, kwargs)
        elif writer.has_input:
            self._take_inputs(args, kwargs)

    def _take_inputs(self, args: tuple, kwargs: dict) -> None:
        self.mode.writer.elements.inputs(self.pieces, self.entry, args, kwargs, self.store)

    def end(self, result: Any) -> None:
        """The kernel has run: write the entry."""
        writer = self.mode.writer
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        if self.kernel.is_mutable:
            # The version of a tensor is raised after its kernel, so what was measured before would look unchanged.
            writer.elements.meter.forget()
        if writer.finder is not None:
            if not writer.finder.found(self.entry, self.inputs, outputs):
                return
            self.store = self.step.store
            self._take_inputs(*self.inputs)
        if writer.has_output and self.kernel.has_output:
            self.pieces.append(', "output": ' if self.pieces else '"output": ')
            writer.elements.listed(self.pieces, outputs, f"{self.entry}.output", self.store)
        self.mode.collector.put(
            self.step, self.entry, ["{", *self.pieces, "}"], self.frames, self.parent, True
        )


class _Places:
    """Which call made an autograd node: by the node's number, which counts up in each thread."""

    def __init__(self) -> None:
        self._threads: dict[int, dict[int, tuple[str, ...]]] = {}

    def note(self, parents: tuple[str, ...]) -> None:
        """A kernel runs in `parents`; the node for it, if there is one, was made just before."""
        mine = self._threads.get(threading.get_ident())
        if mine is None:
            mine = self._threads.setdefault(threading.get_ident(), {})
        mine.setdefault(sequence_number() - 1, parents)  # an older node is known already

    def of_running_node(self) -> tuple[str, ...]:
        """The backward names of the calls around the node that runs now."""
        node = torch._C._current_autograd_node()
        if node is None:
            return ()
        number = node._sequence_nr()
        mine = self._threads.get(threading.get_ident())
        found = None if mine is None else mine.get(number)
        if found is None:  # backward runs in a thread of its own, as on accelerators
            others = [seen[number] for seen in list(self._threads.values()) if number in seen]
            found = others[0] if len(others) == 1 else ()
        return tuple(name for name in map(_backward_of, found) if name is not None)

    def clear(self) -> None:
        self._threads.clear()


def _backward_of(name: str) -> str | None:
    if name.endswith(".forward"):
        return f"{name.removesuffix('forward')}backward"
    head, found, number = name.rpartition(".forward.")
    return f"{head}.backward.{number}" if found else None


class KernelSwitch:
    """Turns the kernel mode on in start and off in stop, whatever modes of the user came in between."""

    def __init__(self, mode: KernelMode) -> None:
        self.mode = mode

    def install(self, model: Any = None) -> None:
        self.mode.switch.is_on = True
        if not is_on(self.mode):
            self.mode.__enter__()

    def remove(self) -> None:
        self.mode.switch.is_on = False
        if not is_on(self.mode):
            return
        if torch._C._get_dispatch_stack_at(torch._C._len_torch_dispatch_stack() - 1) is self.mode:
            self.mode.__exit__(None, None, None)
            return
        # torch notes in each mode whether others were on before it: what ours noted is for the one above it now.
        above = take_off(self.mode) or []
        for flags in _FLAGS:
            mine, theirs = getattr(self.mode, flags, None), getattr(above[0], flags, None) if above else None
            if mine and theirs:
                theirs[-1] = mine.pop()

    def end_step(self) -> None:
        self.mode.end_step()


_FLAGS = (
    "old_dispatch_mode_flags",
    "old_non_infra_dispatch_mode_flags",
    "old_without_ignore_compile_internals_dispatch_mode_flags",
)
