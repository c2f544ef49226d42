"""Level L2 inside compiled graphs: inputs and outputs of every kernel that inductor generated or calls.

    compiled graph runs ──> functions that its generated file calls (cpp_fused_*, extern_kernels, torch.ops…) ──> the same
    functions, recording the values before and after ──> entry "Kernel.{name}.{n}.forward" or ".backward"

The generated code stays as it is and calls the same kernels with the same arguments: no result changes by a bit. Its
source says which arguments a kernel reads and which it writes, and a comment above each call names its operators:

    async_compile.cpp_pybinding(['const float*', 'float*'], '''… void kernel(const float* in_ptr0, float* out_ptr0)''')
        ──> {"cpp_fused_relu_0": ("in", "out")}
    # Topologically Sorted Source Nodes: [relu], Original ATen: [aten.relu]
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import FrameType, ModuleType
from typing import Any

import torch

from windtunnel.probe.collect.collector import Collector, StepOutput
from windtunnel.probe.files.notices import tell
from windtunnel.probe.pytorch.eager.attribute_swap import Swaps
from windtunnel.probe.pytorch.eager.call_writer import CallWriter
from windtunnel.probe.pytorch.eager.elements import tensors_in

__all__ = ["InductorKernels", "argument_roles", "source_comment"]

_GRAPH_MODULE = "torch._inductor.output_code"
_OPERATORS = ("aten", "inductor_ops", "_quantized")  # names of torch.ops.… in generated files
_IN, _OUT, _BOTH = "in", "out", "both"  # what a kernel does with an argument
_PREFIXES = (("in_out_ptr", _BOTH), ("in_ptr", _IN), ("out_ptr", _OUT))
_SIGNATURE = re.compile(r"\bvoid\s+\w+\(([^)]*)\)\s*\{", re.DOTALL)


class InductorKernels:
    """Records kernels while collecting. `regions` says which compiled region is running."""

    def __init__(
        self, collector: Collector, writer: CallWriter, regions: Any, graph: Callable[[], StepOutput | None]
    ) -> None:
        self.collector = collector
        self.writer = writer
        self.graph = graph
        self._swaps = Swaps()
        self._lock = threading.Lock()
        self._files: set[int] = set()  # globals of the generated files whose names are replaced
        self._told: set[str] = set()
        self.thread = _Running()
        regions.on_enter.append(self._region_begins)
        regions.on_exit.append(self._region_ends)

    def install(self, model: Any = None) -> None:
        if self._swaps or _GRAPH_MODULE not in sys.modules:
            return
        graph = sys.modules[_GRAPH_MODULE].CompiledFxGraph
        original = graph.__call__

        def call(compiled: Any, inputs: Any) -> Any:
            before = self._prepare(compiled)
            try:
                return original(compiled, inputs)
            finally:
                self.thread.direction, self.thread.fresh = before

        self._swaps.replace(graph, "__call__", call)

    def remove(self) -> None:
        self._swaps.restore()
        self._files.clear()

    def end_step(self) -> None:
        """Nothing is left after stop."""

    def _prepare(self, compiled: Any) -> tuple[str, set[int]]:
        """Before a compiled graph runs: wrap the kernels that its file calls. Returns the previous state."""
        running = self.thread
        before = running.direction, running.fresh
        try:
            running.n_graphs += 1
            running.direction = "backward" if (compiled.fx_kwargs or {}).get("is_backward") else "forward"
            running.fresh = set()
            names = _generated_names(compiled)
            with self._lock:
                if names is not None and id(names) not in self._files:
                    self._files.add(id(names))
                    self._stand_in(names)
        except Exception as error:
            self.collector.guard("the kernels of a compiled graph", error)
        return before

    def _stand_in(self, names: dict[str, Any]) -> None:
        roles = argument_roles(names["__file__"])
        replaced: dict[str, Any] = {}
        for name, value in list(names.items()):
            if name in roles:
                replaced[name] = _kernel(self, name, value, roles[name])
            elif name == "extern_kernels":
                replaced[name] = _Library(value, self, "extern")
            elif name == "torch":
                replaced[name] = _Torch(value, self)
            elif name in _OPERATORS:
                replaced[name] = _Library(value, self, value._name if hasattr(value, "_name") else name)
            elif name.startswith("empty_strided") and callable(value):
                replaced[name] = self._noting_fresh(value)
        originals = {name: names[name] for name in replaced}
        self._swaps.undo_with(lambda: names.update(originals))
        names.update(replaced)

    def _noting_fresh(self, original: Callable) -> Callable:
        def empty(*args: Any, **kwargs: Any) -> Any:
            tensor = original(*args, **kwargs)
            self.thread.fresh.add(tensor.data_ptr())
            return tensor

        return empty

    def run(self, name: str, function: Callable, args: tuple, kwargs: dict, roles: tuple[str, ...]) -> Any:
        """Run a kernel, recording its arguments before and after."""
        noted = None
        self.thread.n_kernels += 1
        try:
            noted = self._begin(name, args, kwargs, roles)
        except Exception as error:
            self.collector.guard(f"the inputs of {name}", error)
        result = function(*args, **kwargs)
        if noted is not None:
            try:
                noted.end(result)
            except Exception as error:
                self.collector.guard(f"the outputs of {name}", error)
        return result

    def _begin(self, name: str, args: tuple, kwargs: dict, roles: tuple[str, ...]) -> _Noted | None:
        step, writer = self.graph(), self.writer
        is_backward = self.thread.direction == "backward"
        if step is None or not (writer.has_backward if is_backward else writer.has_forward):
            return None
        key = f"Kernel.{name}"
        # Counted apart: forward numbers stay the same whether or not a backward ran in between.
        number = step.number(f"{key}.backward" if is_backward else key)
        entry = f"{key}.{number}.{self.thread.direction}"
        if not writer.selection.is_open and not writer.selection.wants(entry, ()):
            return None
        return _Noted(self, step, entry, args, kwargs, roles)

    def _region_begins(self, name: str, context: Any) -> None:
        self.thread.before = self.thread.n_graphs, self.thread.n_kernels
        if not self._swaps:
            self.install()  # inductor is loaded when something is compiled for the first time

    def _region_ends(self, name: str, context: Any) -> None:
        running = self.thread
        n_graphs, n_kernels = running.n_graphs - running.before[0], running.n_kernels - running.before[1]
        if n_graphs == 0:
            self._tell(name, f"its backend {_backend_name(context)} runs no code of inductor")
        elif n_kernels == 0:
            self._tell(name, "its kernels are not called from Python, as in CUDA graphs or a C++ wrapper")

    def _tell(self, region: str, reason: str) -> None:
        sentence = f"kernels inside the compiled region {region} are not collected: {reason}; use level L0 for its modules"
        if sentence not in self._told:
            self._told.add(sentence)
            tell(sentence)


class _Running(threading.local):
    """What a thread is running, and how much it has run."""

    def __init__(self) -> None:
        self.direction = "forward"
        self.fresh: set[int] = set()  # allocated memory that has not been written yet
        self.n_graphs = self.n_kernels = 0
        self.before = 0, 0


class _Noted:
    """A kernel that is about to run. Arguments that it only writes are not inputs, nor is uninitialised memory."""

    def __init__(
        self,
        owner: InductorKernels,
        step: StepOutput,
        entry: str,
        args: tuple,
        kwargs: dict,
        roles: tuple[str, ...],
    ) -> None:
        self.owner = owner
        self.step = step
        self.entry = entry
        self.frames = _frames(owner) if owner.writer.has_stacks else None
        outs = kwargs.get("out")
        self.written = list(tensors_in(outs)) if outs is not None else []
        inputs = []
        for index, value in enumerate(args):
            role = roles[index] if index < len(roles) else "in"
            if role != "in":
                self.written += tensors_in(value)
            if role == "in" or (role == "both" and not self._is_fresh(value)):
                inputs.append(value)
        self.inputs = inputs, {key: value for key, value in kwargs.items() if key not in ("out", "stream")}
        writer = owner.writer
        self.store = writer.store_for(step, entry)
        self.pieces: list = []
        if writer.finder is not None:
            args, kwargs = writer.finder.inputs(entry, tuple(inputs), self.inputs[1])
            self.inputs = list(args), kwargs
        elif writer.has_input:
            self._take_inputs()

    def _is_fresh(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.data_ptr() in self.owner.thread.fresh

    def _take_inputs(self) -> None:
        with torch._C.DisableTorchFunction():
            self.owner.writer.elements.inputs(self.pieces, self.entry, *self.inputs, self.store)

    def end(self, result: Any) -> None:
        """Record the outputs of a kernel that has run."""
        owner = self.owner
        writer = owner.writer
        for tensor in self.written:
            owner.thread.fresh.discard(tensor.data_ptr())
        writer.elements.meter.forget()  # kernels write without raising the tensor's version
        outputs = tuple(self.written) or (tuple(result) if isinstance(result, (tuple, list)) else (result,))
        if writer.finder is not None:
            if not writer.finder.found(self.entry, self.inputs, outputs):
                return
            self.store = self.step.store
            self._take_inputs()
        if writer.has_output:
            self.pieces.append(', "output": ' if self.pieces else '"output": ')
            with torch._C.DisableTorchFunction():
                writer.elements.listed(self.pieces, outputs, f"{self.entry}.output", self.store)
        owner.collector.put(self.step, self.entry, ["{", *self.pieces, "}"], self.frames, None, True)


def _frames(owner: InductorKernels) -> tuple[str, ...]:
    """The stack of the call, and above it the generated file's comment on the kernel's origin."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("windtunnel."):
        frame = frame.f_back
    frames = owner.collector.stacks.here()
    comment = source_comment(frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
    return frames if comment is None else (comment, *frames)


def _kernel(owner: InductorKernels, name: str, kernel: Any, roles: tuple[str, ...]) -> Any:
    if hasattr(kernel, "run"):  # a Triton kernel is called by its run
        return _Triton(owner, name, kernel, roles)

    def run(*args: Any, **kwargs: Any) -> Any:
        return owner.run(name, kernel, args, kwargs, roles)

    return run


class _StandIn:
    """A proxy for an object of the generated file."""

    def __init__(self, original: Any, owner: InductorKernels) -> None:
        self._original = original
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _Triton(_StandIn):
    def __init__(self, owner: InductorKernels, name: str, kernel: Any, roles: tuple[str, ...]) -> None:
        super().__init__(kernel, owner)
        self._name = name
        self._roles = roles

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self._owner.run(self._name, self._original.run, args, kwargs, self._roles)


class _Torch(_StandIn):
    """The module torch, whose `ops` are recorded."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._original, name)
        return _Ops(found, self._owner) if name == "ops" else found


class _Ops(_StandIn):
    def __getattr__(self, name: str) -> Any:
        return _Library(getattr(self._original, name), self._owner, name)


class _Library(_StandIn):
    """A namespace of operators, or one operator with its overloads: calls are recorded under their full name."""

    def __init__(self, original: Any, owner: InductorKernels, name: str) -> None:
        super().__init__(original, owner)
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._original, name)
        return _Library(found, self._owner, f"{self._name}.{name}") if callable(found) else found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._owner.run(self._name.removesuffix(".default"), self._original, args, kwargs, ())


def _backend_name(context: Any) -> str:
    backend = torch._dynamo.eval_frame.innermost_backend(context.callback)
    return str(
        getattr(backend, "compiler_name", None) or getattr(backend, "__name__", type(backend).__name__)
    )


def _generated_names(compiled: Any) -> dict[str, Any] | None:
    """The globals of the Python file inductor generated for a graph."""
    for start in (compiled.compiled_fn_runner, compiled.current_callable):
        for function in _functions(start, 0):
            names = function.__globals__
            if "extern_kernels" in names and "call" in names and isinstance(names.get("__file__"), str):
                return names
    return None


def _functions(value: Any, depth: int) -> Iterator[Any]:
    """Python functions behind a callable: methods, closures, wrappers."""
    if value is None or depth > 4 or isinstance(value, ModuleType):
        return
    for method in (getattr(value, "__func__", None), getattr(type(value), "call", None)):
        if hasattr(method, "__globals__"):
            yield method
    if hasattr(value, "__globals__"):
        yield value
        for cell in value.__closure__ or ():
            if callable(cell.cell_contents):
                yield from _functions(cell.cell_contents, depth + 1)


@lru_cache(maxsize=256)
def argument_roles(path: str) -> dict[str, tuple[str, ...]]:
    """For every kernel compiled in the file: what it does with each of its arguments."""
    found: dict[str, tuple[str, ...]] = {}
    tree = ast.parse("".join(linecache.getlines(path)), path)
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        call, target = node.value, node.targets[0]
        if not isinstance(target, ast.Name) or not isinstance(call.func, ast.Attribute):
            continue
        texts = [
            arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
        ]
        if call.func.attr in ("cpp", "cpp_pybinding") and texts:
            found[target.id] = _roles(texts[-1])
        elif call.func.attr == "triton" and texts:
            found[target.id] = _triton_roles(texts[-1])
    return found


@lru_cache(maxsize=4096)
def source_comment(path: str, line: int) -> str | None:
    """The comment above a call in generated code, which names the operators of the program it stands for."""
    lines = []
    line -= 1
    while (text := linecache.getline(path, line).strip()).startswith("#"):
        lines.append(text.lstrip("# "))
        line -= 1
    return "\n".join(reversed(lines)) or None


def _roles(source: str) -> tuple[str, ...]:
    signature = _SIGNATURE.search(source)
    names = [part.split()[-1] for part in signature.group(1).split(",") if part.strip()] if signature else []
    return tuple(_role(name) for name in names)


def _triton_roles(source: str) -> tuple[str, ...]:
    signature = re.search(r"def \w+\(([^)]*)\):", source)
    names = [part.split(":")[0].strip() for part in signature.group(1).split(",")] if signature else []
    return tuple(_role(name) for name in names if name and not name.endswith("BLOCK"))


def _role(name: str) -> str:
    return next((role for prefix, role in _PREFIXES if name.lstrip("*&").startswith(prefix)), _IN)
