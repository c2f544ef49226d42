"""Static graphs of one debugger: which cells are recorded in them, and where their values go.

    start(model) ──> cells known ──> MindSpore compiles ──> modified constructs, which send their values to the host
    GRAPH_MODE: step… as usual     jit in PyNative: graph/step…, and pynative/step… for what runs outside

A cell is modified only while the compiler reads it. A compiled graph always sends its values; outside of wanted steps
they are ignored.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn
from mindspore.graph.api import _pynative_executor

from windtunnel.probe.collect.collector import Collector, StepOutput
from windtunnel.probe.files.notices import tell
from windtunnel.probe.mindspore.graph.calls import GraphCalls, WatchedCell
from windtunnel.probe.mindspore.graph.compilers import BytecodeOff, CompileWatch, has_jit, is_graph_mode
from windtunnel.probe.mindspore.graph.taps import Place, gradient_hook, set_receiver, tapped_construct
from windtunnel.probe.mindspore.pynative.cells import named_cells, roots_of
from windtunnel.probe.mindspore.pynative.tensor_meter import host_array, plain_array

__all__ = ["GraphCode"]

_NUMBERS = count()  # of watched cells; graphs that are compiled keep them, so none is used twice
_COMPILED_MODULES = "MS_JIT_MODULES"


class GraphCode:
    """A part of the debugger: installed while collecting. `prepare` comes before the first graph is compiled."""

    def __init__(self, collector: Collector, version: str) -> None:
        self.collector = collector
        self.version = version
        self.area = ""  # folder of dynamic code below dump_path: "pynative" once compiled cells are known
        self.calls = GraphCalls(collector, self._output)
        self._has_cells = collector.config.level in ("L0", "mix")
        self._roots: tuple[int, ...] = ()
        self._cells: dict[int, nn.Cell] = {}
        self._inside: set[int] = set()  # cells below a compiled one
        self._is_on = self._is_told = False
        self._wants_gradients = "backward" in collector.config.data_mode
        forward_alone = (lambda: self._taps(has_gradients=False),) if self._wants_gradients else ()
        self._compiling = CompileWatch(lambda: self._taps(self._wants_gradients), self._failed, forward_alone)
        self._bytecode = BytecodeOff()
        self._hooks: dict[int, tuple[Callable, Any]] = {}  # parameter -> hook for dynamic code, handle
        self._graph: StepOutput | None = None
        self._n_before = 0

    def prepare(self, model: Any) -> None:
        """Called at every start, even of steps that are not collected: the first step compiles."""
        if is_graph_mode() and self.collector.config.level in ("L1", "debug"):
            self._tell_once(
                f"level {self.collector.config.level} sees nothing inside graphs, and in GRAPH_MODE everything runs in one: "
                'set "level": "L0" for cells, "L2" for kernels'
            )
        roots = tuple(id(root) for _, root in roots_of(model))
        if not self._has_cells or not roots or roots == self._roots:
            return
        is_first, self._roots = not self._roots, roots
        compiled = [
            cell for _, root in roots_of(model) for _, cell in root.cells_and_names() if has_jit(cell)
        ]
        self._inside = {id(below) for cell in compiled for path, below in cell.cells_and_names() if path}
        if is_first and not is_graph_mode():
            self.area = "pynative" if compiled else ""
        if is_first:
            self._tell_about_device()
        known = {id(cell) for cell in self._cells.values()}
        for name, cell in named_cells(model):
            if id(cell) not in known and not _is_left_out(cell):
                number = next(_NUMBERS)
                self._cells[number] = cell
                self.calls.cells[number] = _watched(name, cell)
        _let_compiler_read_us()
        set_receiver(self.calls.receive)
        self._compiling.install()

    def handles(self, cell: nn.Cell) -> bool:
        """Whether a cell runs only inside graphs, so that hooks of dynamic code have no place on it."""
        return is_graph_mode() or id(cell) in self._inside

    def install(self, model: Any = None) -> None:
        self._is_on = True
        self._n_before = self.calls.n_noted
        if self._has_cells and not is_graph_mode():
            self._bytecode.install()
            if self._wants_gradients:
                self._hook_parameters()

    def _hook_parameters(self) -> None:
        """Of compiled cells: in PyNative mode the gradients of their parameters are summed outside of graphs."""
        for number, cell in self._cells.items():
            if id(cell) in self._inside or has_jit(cell):
                for value in _parameters(cell).values():
                    if value.requires_grad and id(value) not in self._hooks:
                        hook = self._eager_hook(number, _last(value.name))
                        self._hooks[id(value)] = hook, value.register_hook(hook)

    def _eager_hook(self, number: int, name: str) -> Callable:
        def hook(gradient: Tensor) -> Tensor:
            array = host_array(gradient)
            if array is not None:
                kind = "bfloat16" if array.dtype.name == "bfloat16" else "tensor"
                place = Place(number, f"parameters.{name}", kind)
                self.calls.receive("backward", 0, place, plain_array(array))
            return gradient

        return hook

    def remove(self) -> None:
        if self._is_on and self._has_cells:
            _wait_for_graphs()
            self.calls.write_backward()
        self._is_on = False
        self._bytecode.remove()
        if self._graph is not None:
            self._graph.store.drain()
            self._graph.folder.flush()

    def end_step(self) -> None:
        if self._has_cells:
            _wait_for_graphs()
        self.calls.end_step()
        if is_graph_mode() and self._cells and self.calls.n_noted == self._n_before:
            self._tell_once(
                f"no graph that contains the model's {len(self._cells)} cells has run, so nothing was collected: call "
                "start(model) before the first step, because graphs that are already compiled do not change"
            )
        hooks, self._hooks = self._hooks, {}
        for _, handle in hooks.values():
            handle.remove()
        graph, self._graph = self._graph, None
        if graph is not None:
            graph.is_open = False
            graph.store.drain()
            graph.folder.close()

    def close(self) -> None:
        """Let MindSpore compile as usual again."""
        if self._roots:
            self._roots = ()
            self._compiling.remove()
            self._bytecode.remove()
            set_receiver(None)

    def rename(self, name: str) -> None:
        """Move the folder, as when the rank becomes known after it was created."""
        if self._graph is not None:
            self._graph.rename(self._graph.folder.path.with_name(name))

    def _tell_about_device(self) -> None:
        device = ms.get_context("device_target")
        if device != "CPU" and (is_graph_mode() or self._inside):
            tell(
                f"cells in static graphs are collected by operators that MindSpore runs on the host; on {device} this works "
                "only at jit_level O0 and O1, and it has been tested only on CPU: if the graph does not compile, set "
                '"level": "L2", which uses MindSpore\'s own dump'
            )

    def _tell_once(self, sentence: str) -> None:
        if not self._is_told:
            self._is_told = True
            tell(sentence)

    def _output(self) -> StepOutput | None:
        if not self._is_on or self.collector.step is None:
            return None
        if is_graph_mode():
            return self.collector.step
        if self._graph is None:
            self._graph = self._open_graph(self.collector.step)
        return self._graph

    def _open_graph(self, step: StepOutput) -> StepOutput:
        config, place = self.collector.config, step.folder.path
        folder = config.dump_path / "graph" / place.parent.name / place.name
        wants_tensors = config.task == "tensor" or bool(config.tensor_list)
        return StepOutput(config, folder, self.version, wants_tensors)

    def _failed(self, error: Exception) -> None:
        self._is_told = True
        self.collector.guard("the cells of a graph, which are now recorded in forward only", error)

    @contextmanager
    def _taps(self, has_gradients: bool) -> Iterator[None]:
        """Replace the constructs of the cells while the compiler reads them."""
        with ExitStack() as undo:
            for number, cell in self._cells.items():
                parameters = _parameters(cell)
                own = cell.__dict__.get("construct")  # a construct of this one cell, if the user has set one
                inner = cell.construct
                names = {attribute: _last(value.name) for attribute, value in parameters.items()}
                tapped = tapped_construct(inner, number, names, has_gradients)
                _set_construct(cell, tapped.__get__(cell, type(cell)))
                undo.callback(_set_construct, cell, own)
                undo.callback(_hide_hooks(cell))
                if has_gradients:
                    for attribute, value in parameters.items():
                        if value.requires_grad:
                            self._swap_hook(undo, value, gradient_hook(number, names[attribute]))
            yield

    def _swap_hook(self, undo: ExitStack, value: Parameter, hook: Callable) -> None:
        """The compiler reads a hook that goes into the graph, and not the one for dynamic code."""
        eager = self._hooks.get(id(value))
        if eager is not None:
            eager[1].remove()
            undo.callback(self._hook_again, value, eager[0])
        undo.callback(value.register_hook(hook).remove)

    def _hook_again(self, value: Parameter, hook: Callable) -> None:
        self._hooks[id(value)] = hook, value.register_hook(hook)


def _watched(name: str, cell: nn.Cell) -> WatchedCell:
    parameters = _parameters(cell)
    names = tuple(_last(value.name) for value in parameters.values())
    trainable = tuple(_last(value.name) for value in parameters.values() if value.requires_grad)
    return WatchedCell(name, names, trainable, _frames(cell))


def _parameters(cell: nn.Cell) -> dict[str, Parameter]:
    return {attribute: value for attribute, value in cell._params.items() if value is not None}


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _frames(cell: nn.Cell) -> tuple[str, ...]:
    """Where the construct is written: a graph has no stack of Python when it runs."""
    function = inspect.unwrap(type(cell).construct)
    code = getattr(function, "__code__", None)
    return () if code is None else (f"File {code.co_filename}, line {code.co_firstlineno}, in construct",)


def _is_left_out(cell: nn.Cell) -> bool:
    """Cells that are no layers: optimizers, and what MindSpore makes for itself."""
    return isinstance(cell, nn.Optimizer) or type(cell).__name__.startswith("_")


def _set_construct(cell: nn.Cell, construct: Callable | None) -> None:
    if construct is None:
        cell.__dict__.pop("construct", None)
    else:
        object.__setattr__(cell, "construct", construct)


def _hide_hooks(cell: nn.Cell) -> Callable[[], None]:
    """Take our hooks for dynamic code off a cell, for the compiler would read them; the result puts them back."""
    hidden: list[tuple[Any, Sequence]] = []
    for hooks in (cell._forward_pre_hook, cell._forward_hook):
        if any(_is_ours(hook) for hook in hooks.values()):
            before = list(hooks.items())
            hidden.append((hooks, before))
            for key, hook in before:
                if _is_ours(hook):
                    del hooks[key]

    def put_back() -> None:
        for hooks, before in hidden:
            hooks.clear()
            hooks.update(before)

    return put_back


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("windtunnel.")


def _let_compiler_read_us() -> None:
    """Functions of installed packages are called, not compiled, unless their package is listed here."""
    named = [name for name in os.environ.get(_COMPILED_MODULES, "").split(",") if name]
    if "windtunnel" not in named:
        os.environ[_COMPILED_MODULES] = ",".join([*named, "windtunnel"])


def _wait_for_graphs() -> None:
    _pynative_executor.sync()
    if ms.get_context("device_target") != "CPU":  # where a graph has run when its call returns
        ms.runtime.synchronize()
