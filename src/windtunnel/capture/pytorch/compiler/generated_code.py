"""Run the code that Inductor generates on simulated tensors: its allocations, frees and reuse are the program's own.

source of `call(args)` ──> module ──> buffers (ALLOC and FREE rows), library calls (OP rows), fused kernels (one OP row each)
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from windtunnel.capture.pytorch.compiler.inner_modules import (
    PLACE_FUNCTION,
    attributed,
    enter_place,
)
from windtunnel.capture.pytorch.kernels.kernels import locate_backward
from windtunnel.capture.pytorch.kernels.shape_inference import tensor_spec
from windtunnel.capture.pytorch.kernels.triton_pointers import accesses_in_source
from windtunnel.capture.pytorch.tensors.storage import CPU, new_tensor, sim_of, view_of, world
from windtunnel.capture.pytorch.tensors.traced import compiling
from windtunnel.events.model import Signature

__all__ = ["FusedKernel", "load_generated", "rehearse"]

_counter = itertools.count()


class FusedKernel:
    """A kernel that Inductor generated: one row with what it reads and writes, and nothing computed."""

    def __init__(self, name: str, parameters: list[str], costs: str = "") -> None:
        self.name = name
        self.costs = costs  # "bytes=4096 flops=0", as Inductor counts them
        self.writes = [p.startswith(("out_ptr", "in_out_ptr")) for p in parameters]
        self.reads = [not p.startswith("out_ptr") for p in parameters]
        self.signatures: dict[Any, int] = {}

    def run(self, *args: Any, **_: Any) -> None:
        """A launch."""
        recorder = world.recorder
        locate_backward(recorder)
        inputs, outputs = self._tensors(args, self.reads), self._tensors(args, self.writes)
        key = tuple((t.shape, t.stride(), t.dtype) for t in (*inputs, *outputs))
        signature = self.signatures.get(key)
        if signature is None:
            specs = tuple(map(tensor_spec, inputs)), tuple(map(tensor_spec, outputs))
            signature = self.signatures[key] = recorder.writer.signature(
                Signature(self.name, *specs, self.costs)
            )
        id = recorder.n_ops
        recorder.n_ops = id + 1
        sims = [sim for t in inputs if (sim := sim_of(t)) is not None]
        written = [sim for t in outputs if (sim := sim_of(t)) is not None]
        for sim in written:
            sim.values = None
        indices = [sim.device_index for sim in (*sims, *written) if sim.device_index >= 0]
        if indices:
            recorder.write_op(id, signature, indices[0], [s.id for s in sims], [s.id for s in written])

    __call__ = run

    def _tensors(self, args: tuple[Any, ...], flags: list[bool]) -> list[torch.Tensor]:
        wanted = itertools.chain(flags, itertools.repeat(False))
        return [
            a for a, is_wanted in zip(args, wanted, strict=False) if is_wanted and isinstance(a, torch.Tensor)
        ]


class _KernelCompiler:
    """In place of `AsyncCompile`: kernels are named, not compiled."""

    def triton(self, name: str, source: str, *_: Any, **__: Any) -> FusedKernel:
        parameters = _parameters(source, rf"def {re.escape(name)}\((.*?)\)")
        kernel = FusedKernel(name, parameters, _costs(source))
        if (
            not any(kernel.writes) and (found := accesses_in_source(source, name)) is not None
        ):  # the program's own
            kernel.reads = [p in found.reads for p in parameters]
            kernel.writes = [p in found.writes for p in parameters]
        return kernel

    def cpp_pybinding(self, types: list[str], source: str, *_: Any, **__: Any) -> FusedKernel:
        match = re.search(r'extern "C"\s+(?:\w+\s+)?void\s+(\w+)\((.*?)\)', source, re.DOTALL)
        names = [part.split()[-1].lstrip("*&") for part in match[2].split(",")] if match else []
        return FusedKernel(match[1] if match else "cpp_fused", names)

    cpp = cpp_pybinding

    def multi_kernel(self, name: str, kernels: list[FusedKernel], *_: Any, **__: Any) -> FusedKernel:
        return kernels[0]

    def wait(self, scope: dict[str, Any]) -> None:
        pass


def _parameters(source: str, pattern: str) -> list[str]:
    match = re.search(pattern, source, re.DOTALL)
    if match is None:
        return []
    return [part.partition(":")[0].partition("=")[0].strip() for part in match[1].split(",")]


def _costs(source: str) -> str:
    found = re.search(r"'kernel_num_gb': ([0-9.e+-]+)", source)
    flops = re.search(r"'kernel_flop': ([0-9.e+-]+)", source)
    if found is None:
        return ""
    return f"bytes={round(float(found[1]) * 1e9)} flops={round(float(flops[1])) if flops else 0}"


def load_generated(source: str, constants: dict[str, Any]) -> ModuleType:
    """The generated module, with buffers on simulated devices and kernels that record their launches."""
    module = ModuleType(f"windtunnel_generated_{next(_counter)}")
    module.__file__ = f"<inductor {module.__name__}>"
    provided = _provided()
    vars(module).update(provided | constants)
    tree = ast.parse(source)
    tree.body = [each for each in tree.body if not _assigns(each, provided)]
    exec(compile(tree, module.__file__, "exec"), vars(module))
    vars(module).update(provided)  # it imported some of them
    for name, value in vars(module).items():
        if isinstance(value, FusedKernel):
            value.name = f"inductor.{name}"
    if f"{PLACE_FUNCTION}(" in source:
        vars(module)["call"] = attributed(module.call)
    return module


def rehearse(module: ModuleType, inputs: Sequence[Any] | None, source: str) -> None:
    """Run the code once on tensors in nobody's account: what cannot run here is found before the program needs it."""
    if "_c10d_functional" in source or inputs is None:  # other ranks would have to take part
        return
    try:
        made = [_stand_in(each) for each in inputs]
    except _NoStandIn:
        return
    with compiling, _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(()):
        module.call(made)


class _NoStandIn(Exception):
    """An input whose size is not known before the program runs, or that is no tensor."""


def _stand_in(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise _NoStandIn
        sizes, strides = (tuple(map(_stand_in, each)) for each in (value.shape, value.stride()))
        with compiling:
            return new_tensor(sizes, strides, value.dtype, value.device)
    if isinstance(value, torch.SymInt):
        value = value.node.hint
    if not isinstance(value, (int, float)):
        raise _NoStandIn
    return value


def _assigns(statement: ast.stmt, names: dict[str, Any]) -> bool:
    if isinstance(statement, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id in names for t in statement.targets)
    return False


def _provided() -> dict[str, Any]:
    return {
        "async_compile": _KernelCompiler(),
        "empty_strided_cpu": _allocator_on(CPU),
        "empty_strided_cpu_pinned": _allocator_on(CPU),
        f"empty_strided_{world.device_type}": _allocator_on(world.default_device),
        "reinterpret_tensor": _reinterpret,
        "alloc_from_pool": _alloc_from_pool,
        "assert_size_stride": _accept,
        "assert_alignment": _accept,
        "get_raw_stream": lambda index: 0,
        "nullcontext": nullcontext,
        PLACE_FUNCTION: enter_place,
        "start_graph": _accept,
        "end_graph": _accept,
    }


def _accept(*_: Any, **__: Any) -> None:
    pass


def _allocator_on(device: torch.device) -> Callable[..., torch.Tensor]:
    def empty_strided(size: Any, stride: Any, dtype: torch.dtype, *_: Any) -> torch.Tensor:
        return new_tensor(tuple(size), tuple(stride), dtype, device)

    return empty_strided


def _reinterpret(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    return view_of(tensor, size, stride, int(tensor.storage_offset()) + offset)


def _alloc_from_pool(
    pool: torch.Tensor, offset: int, dtype: torch.dtype, size: Any, stride: Any
) -> torch.Tensor:
    return view_of(pool.view(torch.uint8)[offset:].view(dtype), size, stride)
