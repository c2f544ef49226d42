"""Launches of Triton kernels on simulated tensors: recorded, not compiled.

    import triton ──> the installed package, whole: jit, autotune, heuristics, the language
    kernel[grid](x, y, n, BLOCK=1024) ──> grid evaluated as Triton does ──> OP row "triton.kernel": grid, constants, tensors
    triton.runtime.driver.active ──> answers for the simulated device (triton_driver.py)

What a kernel stores to is found in its source (triton_pointers.py) and has unknown values afterwards. Autotuning runs its hooks
and holds its buffer, but has no times to compare: the first configuration is taken.
"""

from __future__ import annotations

import inspect
import textwrap
import threading
import types
from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.define_operator import announce
from windtunnel.capture.pytorch.kernels.launches import record_launch, tensors_in
from windtunnel.capture.pytorch.kernels.triton_pointers import (
    POINTER,
    Accesses,
    Function,
    accesses_of,
    tested_names,
)
from windtunnel.capture.pytorch.packages.triton_driver import Driver
from windtunnel.capture.pytorch.tensors.storage import sim_of, world
from windtunnel.capture.pytorch.tensors.traced import is_traced

__all__ = ["complete_interpreter", "complete_triton"]

Tensor = torch.Tensor
_MOST_BLOCKS = 65535  # along the second and third dimension of a grid
_tuning = threading.local()  # .depth: a kernel is being benchmarked in this thread


def complete_triton(triton: types.ModuleType) -> None:
    """Once, after the installed package was imported."""
    runtime: Any = triton.runtime
    driver = Driver(triton)
    runtime.driver.set_active(driver)
    for name in ("_default", "default"):  # for reset_active, by the name this version has
        if name in vars(runtime.driver):
            setattr(runtime.driver, name, driver)
    driver.benchmark = _benchmark(driver)
    options = _options_of(triton)
    runtime.jit.JITFunction.run = _make_run(runtime.jit.JITFunction.run, options)
    testing = getattr(triton, "testing", None)
    if testing is not None:
        testing.do_bench = testing.do_bench_cudagraph = driver.benchmark


def complete_interpreter(interpreter: types.ModuleType) -> None:
    """With TRITON_INTERPRET=1 kernels run in Python, on tensors that have bytes."""
    owner: Any = interpreter.InterpretedFunction
    original = owner.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if any(sim_of(t) is not None for value in (*args, *kwargs.values()) for t in tensors_in(value)):
            return _launch(_described(self), args, grid, warmup, kwargs)
        return original(self, *args, grid=grid, warmup=warmup, **kwargs)

    owner.run = run


def _make_run(original: Any, options: frozenset[str]) -> Any:
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        tensors = [t for value in (*args, *kwargs.values()) for t in tensors_in(value)]
        if warmup and not any(sim_of(t) is not None for t in tensors):  # compiled for the device, as it asks
            return original(self, *args, grid=grid, warmup=True, **kwargs)
        if any(t.device.type == "meta" or is_traced(t) for t in tensors):
            return None  # somebody asks for shapes
        for name in kwargs:
            if name not in self.signature.parameters and options and name not in options:
                raise KeyError(f"Keyword argument {name} was specified but unrecognised")
        return _launch(self, args, grid, warmup, kwargs)

    return run


def _launch(kernel: Any, args: tuple[Any, ...], grid: Any, warmup: bool, kwargs: dict[str, Any]) -> None:
    names = kernel.signature.parameters
    bound = kernel.signature.bind(*args, **{k: v for k, v in kwargs.items() if k in names})
    bound.apply_defaults()
    for hook in kernel.pre_run_hooks:
        hook(*args, **kwargs)
    _check_places(bound.arguments)
    if not warmup:
        blocks = _evaluated(grid, dict(bound.arguments))
        if all(blocks) and not getattr(_tuning, "depth", 0):
            _record(kernel, bound.arguments, blocks, kwargs)


def _evaluated(grid: Any, arguments: dict[str, Any]) -> tuple[int, ...]:
    """The grid as Triton computes it: from the arguments, if it is a function."""
    grid = grid(arguments) if callable(grid) else grid
    blocks = tuple(int(n) for n in grid)[:3]
    if blocks[0] >= 1 << 31 or any(n > _MOST_BLOCKS for n in blocks[1:]) or any(n < 0 for n in blocks):
        raise RuntimeError(f"Triton Error [CUDA]: invalid argument (a grid of {blocks})")
    return blocks


def _check_places(arguments: Mapping[str, Any]) -> None:
    """Refuse host memory with Triton's own words: a kernel cannot reach it."""
    if world.device_type == "cpu":  # interpreted
        return
    for i, value in enumerate(arguments.values()):
        for tensor in tensors_in(value):
            if tensor.device.type == "cpu" and tensor.numel():
                raise ValueError(f"Pointer argument (at {i}) cannot be accessed from Triton (cpu tensor?)")


def _record(
    kernel: Any, arguments: Mapping[str, Any], blocks: tuple[int, ...], options: Mapping[str, Any]
) -> None:
    announce("Triton kernels were recorded with their grids and tensors, not compiled or run")
    found = _accesses(kernel, arguments)
    tensors = {name: list(tensors_in(value)) for name, value in arguments.items()}
    read = [t for name in tensors if name in found.reads for t in tensors[name]]
    written = [t for name in tensors if name in found.writes for t in tensors[name]]
    constants = [
        f"{name}={_text(value)}"
        for name, value in (
            *((p.name, arguments[p.name]) for p in kernel.params if p.is_constexpr),
            *((name, value) for name, value in options.items() if name not in arguments),
        )
    ]
    shape = ",".join(map(str, blocks))
    record_launch(f"triton.{kernel.__name__}", " ".join([f"grid=({shape})", *constants]), read, written)


def _text(value: Any) -> str:
    value = getattr(value, "value", value)
    if isinstance(value, (bool, int, float, str)) or value is None:
        return str(value).replace(" ", "_")[:60]
    return str(getattr(value, "__name__", value)).replace(" ", "_")[:60]


# -- what a kernel reads and writes -------------------------------------------------------------------------------

_functions: dict[int, tuple[Any, Function | None]] = {}  # by the kernel's id, which is kept alive
_known: dict[Any, tuple[Accesses, dict[str, Any]]] = {}  # with the constants, whose ids are in the keys


def _accesses(kernel: Any, arguments: Mapping[str, Any]) -> Accesses:
    function = _function_of(kernel)
    everything = frozenset(arguments)
    if function is None:
        return Accesses(everything, everything)
    constexprs = {p.name for p in kernel.params if p.is_constexpr}
    constants = {
        name: _constant(arguments[name], function)
        for name in tested_names(function)
        if name in constexprs or not isinstance(arguments[name], (int, float)) or arguments[name] is None
    }
    key = (id(kernel), *((name, _key_of(value)) for name, value in constants.items()))
    if key not in _known:
        try:
            found = accesses_of(function, constants)
        except RecursionError:
            found = Accesses(everything, everything)
        if not found.writes:  # a kernel that stores nothing has no effect: its stores were not recognised
            found = Accesses(everything, everything)
        _known[key] = found, constants
    return _known[key][0]


def _constant(value: Any, function: Function) -> Any:
    if next(tensors_in(value), None) is not None:
        return POINTER
    return function.known(getattr(value, "value", value))


def _key_of(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) or value is None else id(value)


def _function_of(kernel: Any) -> Function | None:
    known = _functions.get(id(kernel))
    if known is None:
        source = getattr(kernel, "src", "")
        _functions[id(kernel)] = known = (kernel, Function.parsed(source, _scope_of(kernel.fn), _as_function))
    return known[1]


def _as_function(found: Any) -> Any:
    """Functions of a kernel's own are JITFunctions; those of Triton's language are known by name."""
    is_own = hasattr(found, "src") and hasattr(found, "fn")
    if is_own and not str(getattr(found, "__module__", "")).startswith("triton."):
        return _function_of(found)
    return found


def _scope_of(function: Any) -> Any:
    names = dict(function.__globals__)
    if function.__closure__:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            try:
                names[name] = cell.cell_contents
            except ValueError:
                continue  # not assigned yet
    return lambda name: _as_function(names.get(name))


@cache
def _described(kernel: Any) -> SimpleNamespace:
    """An interpreted kernel, as a compiled one describes itself."""
    signature = inspect.signature(kernel.fn)
    text = textwrap.dedent(inspect.getsource(kernel.fn))
    params = [
        SimpleNamespace(name=each.name, is_constexpr="constexpr" in str(each.annotation))
        for each in signature.parameters.values()
    ]
    return SimpleNamespace(
        __name__=kernel.fn.__name__,
        fn=kernel.fn,
        signature=signature,
        params=params,
        src=text[text.index("def ") :],
        pre_run_hooks=kernel.pre_run_hooks,
    )


# -- autotuning and options ---------------------------------------------------------------------------------------


def _benchmark(driver: Driver) -> Any:
    """`do_bench`: the kernel's hooks run, and the buffer that empties the cache is there; time does not pass."""

    def do_bench(call: Any, *_: Any, quantiles: Any = None, **__: Any) -> Any:
        announce(
            "Triton kernels were not tuned, for a simulated device has no times: of the configurations that"
            " @triton.autotune was given, the first was taken"
        )
        buffer = driver.get_empty_cache_for_benchmark()
        _tuning.depth = getattr(_tuning, "depth", 0) + 1
        try:
            call()
        finally:
            _tuning.depth -= 1
            del buffer
        return 1.0 if quantiles is None else [1.0] * len(quantiles)

    return do_bench


def _options_of(triton: types.ModuleType) -> frozenset[str]:
    """What a launch may be given besides the kernel's own parameters; empty: this version does not say."""
    backend: Any = getattr(triton.backends, "backends", {}).get("nvidia")
    module = inspect.getmodule(backend.compiler) if backend is not None else None
    fields = getattr(getattr(module, "CUDAOptions", None), "__dataclass_fields__", None)
    if not fields:
        return frozenset()
    return frozenset(fields) | {
        "device",
        "device_type",
        "stream",
        "debug",
        "instrumentation_mode",
        "grid",
        "warmup",
    }
