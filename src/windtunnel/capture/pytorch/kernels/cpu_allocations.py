"""What the CPU's own kernels allocate, measured by running each distinct one once.

    (op, shapes) first seen ──> run it for real under torch's profiler ──> order of allocations, scratch included

Used when the simulated device is the CPU itself. Kernels allocate scratch that no shape rule describes (oneDNN reorders
a convolution's input into its own layout, depending on the processor): running the kernel is exact, and costs half a
millisecond per distinct operator. Operators too large to run are measured at smaller sizes (cpu_scaling.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    _EventType,
    _ExperimentalConfig,
)

from windtunnel.capture.pytorch.kernels import shape_inference as inference
from windtunnel.capture.pytorch.kernels.cpu_data import install_cpu_data
from windtunnel.capture.pytorch.kernels.cpu_scaling import Step, extrapolated, tensors_in
from windtunnel.capture.pytorch.kernels.known_values import ready_values
from windtunnel.capture.pytorch.tensors.storage import sim_of, world

__all__ = ["install_cpu_kernels"]

Tensor = torch.Tensor
MEASURED_BYTES = 1 << 26  # inputs and outputs together; above this a kernel is not run
_CONFIG = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
_ACTIVITIES = {ProfilerActivity.CPU}
_empty_strided = torch.empty_strided


def install_cpu_kernels() -> None:
    """Make kernels allocate what the CPU would allocate."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler logs every start and stop
    inference.ask_kernel, inference.run_kernel = ask_cpu, _run_on_zeros
    # The CPU's backward runs in the calling thread, whose numbers order the nodes it makes (double backward).
    torch.autograd.set_multithreading_enabled(False)
    install_cpu_data()


def ask_cpu(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any]
) -> tuple[list[Any], inference.Pattern | None]:
    """Run the operator on zeros of the same shapes; its results' layout and the order of its allocations."""
    n_bytes = _argument_bytes((*args, *kwargs.values())) + sum(s[4] for s in outputs if _is_new(s))
    if n_bytes > MEASURED_BYTES:
        return outputs, _ask_smaller(op, args, kwargs, outputs, n_bytes)
    state = torch.default_generator.get_state()
    for fill in (_zeros, _ones, _identity):
        made: dict[int, Tensor] = {}
        real_args = [_real(a, made, fill) for a in args]
        real_kwargs = {
            k: torch.device("cpu") if k == "device" else _real(a, made, fill) for k, a in kwargs.items()
        }
        try:
            events, result = _profiled(op, real_args, real_kwargs)
            break
        except (RuntimeError, IndexError, ValueError, NotImplementedError, TypeError):
            continue  # no valid input for this operator: probabilities must not be zero, matrices not singular
        finally:
            torch.default_generator.set_state(state)
    else:
        return outputs, None
    owned = {t.untyped_storage().data_ptr() for t in made.values()}  # an out= tensor that was resized
    outputs = _as_returned(result, outputs)
    steps = _steps(events, result, outputs, owned)
    return outputs, inference.Pattern(steps, _count_numbers(op, args))


def _ask_smaller(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any], n_bytes: int
) -> inference.Pattern | None:
    """The kernel's allocations from smaller runs of it."""

    def measure(cut: Any) -> list[Step] | None:
        try:
            real_kwargs = {k: torch.device("cpu") if k == "device" else cut(a) for k, a in kwargs.items()}
            real_args = [cut(a) for a in args]
            events, result = _profiled(op, real_args, real_kwargs)
        except (RuntimeError, IndexError, ValueError, NotImplementedError, TypeError):
            return None
        owned = {t.untyped_storage().data_ptr() for t in tensors_in((*real_args, *real_kwargs.values()))}
        return _steps(events, result, _as_returned(result, outputs), owned)

    sizes = {i: s[4] for i, s in enumerate(outputs) if _is_new(s)}
    state = torch.default_generator.get_state()
    steps = extrapolated(measure, (*args, *kwargs.values()), Fraction(MEASURED_BYTES, n_bytes), sizes)
    torch.default_generator.set_state(state)
    if steps is not None:
        return inference.Pattern(steps, _count_numbers(op, args))
    world.recorder.notice(
        f"{op} was too large to run here ({n_bytes >> 20} MiB): its scratch memory is not included"
    )
    return None


def _run_on_zeros(op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The results of an operator that has no meta kernel; None if it does not run on zeros."""
    made: dict[int, Tensor] = {}
    real_kwargs = {
        k: torch.device("cpu") if k == "device" else _real(a, made, _zeros) for k, a in kwargs.items()
    }
    try:
        return op(*[_real(a, made, _zeros) for a in args], **real_kwargs)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None


def _count_numbers(op: Any, args: tuple[Any, ...]) -> int:
    """Python numbers where the schema has a tensor: torch makes a tiny tensor of each before the kernel runs."""
    wants_tensor = [str(a.type) == "Tensor" for a in op._schema.arguments]
    return sum(
        1
        for a, wanted in zip(args, wants_tensor, strict=False)
        if wanted and isinstance(a, (int, float, complex))
    )


def _as_returned(result: Any, outputs: list[Any]) -> list[Any]:
    """Shapes the meta kernel could not know (oneDNN's workspace) and strides as the kernel really gives them."""
    results = result if isinstance(result, (list, tuple)) else [result]
    found = []
    for spec, r in zip(outputs, results, strict=True):
        if _is_new(spec) and isinstance(r, Tensor):
            spec = ("new", tuple(r.shape), tuple(r.stride()), r.dtype, r.untyped_storage().nbytes())
        found.append(spec)
    return found


def _profiled(op: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[tuple[int, int]], Any]:
    _prepare_profiler(_CONFIG, _ACTIVITIES)
    _enable_profiler(_CONFIG, _ACTIVITIES)
    try:
        result = op(*inference.wrap_numbers(op, args), **kwargs)
    finally:
        found = _disable_profiler()
    events: list[tuple[int, int, int]] = []
    for root in found.experimental_event_tree():
        _collect(root, events)
    return [(ptr, size) for _, ptr, size in sorted(events, key=lambda e: e[0])], result


def _collect(event: Any, found: list[tuple[int, int, int]]) -> None:
    if event.tag == _EventType.Allocation:
        found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    for child in event.children:
        _collect(child, found)


def _steps(
    events: list[tuple[int, int]], result: Any, outputs: list[Any], owned: set[int]
) -> list[tuple[str, int, int]]:
    """Name each allocation: one of the results, or scratch that is freed again."""
    results = result if isinstance(result, (list, tuple)) else [result]
    output_at = {r.untyped_storage().data_ptr(): i for i, r in enumerate(results) if isinstance(r, Tensor)
                 and _is_new(outputs[i])}  # fmt: skip
    last_at = {ptr: i for i, (ptr, size) in enumerate(events) if size > 0}
    steps: list[tuple[str, int, int]] = []
    scratch: dict[int, int] = {}
    for i, (ptr, size) in enumerate(events):
        if ptr in owned and last_at.get(ptr, -1) <= i:
            if size > 0 and all(kind != "resize" for kind, _, _ in steps):  # several are resized at once
                steps.append(("resize", 0, size))
        elif size > 0:
            if ptr in output_at and last_at[ptr] == i:
                steps.append(("output", output_at[ptr], size))
            else:
                scratch[ptr] = len(scratch) + sum(1 for s in steps if s[0] == "free")
                steps.append(("scratch", scratch[ptr], size))
        elif ptr in scratch:
            steps.append(("free", scratch.pop(ptr), 0))
    steps += [("free", which, 0) for which in scratch.values()]  # nothing known keeps it after the call
    missing = {i for i, s in enumerate(outputs) if _is_new(s)} - {
        which for kind, which, _ in steps if kind == "output"
    }
    return [*(("output", i, outputs[i][4]) for i in sorted(missing)), *steps]


def _real(a: Any, made: dict[int, Tensor], fill: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(a, Tensor):
        if sim_of(a) is None and a.dim() == 0 and not a.is_meta:
            return a
        if id(a) not in made:
            made[id(a)] = fill(a)
        return made[id(a)]
    if isinstance(a, (list, tuple)):
        return [_real(each, made, fill) for each in a]
    return a


def _zeros(a: Tensor) -> Tensor:
    """Zeros with the same shape and strides (valid indices, no NaN), or the indices themselves where they are known."""
    real = _empty_strided(a.shape, a.stride(), dtype=a.dtype).zero_()
    known = ready_values(a) if not a.is_floating_point() and not a.is_meta and 0 not in a.stride() else None
    return real if known is None else real.copy_(known)


def _ones(a: Tensor) -> Tensor:
    real = _zeros(a)
    return real.fill_(1) if a.is_floating_point() else real


def _identity(a: Tensor) -> Tensor:
    real = _zeros(a)
    if a.is_floating_point() and a.dim() > 1:
        real.diagonal(dim1=-2, dim2=-1).fill_(1)
    return real


def _argument_bytes(values: Any) -> int:
    total = 0
    for a in values:
        if isinstance(a, Tensor):
            total += a.numel() * a.element_size()
        elif isinstance(a, (list, tuple)):
            total += _argument_bytes(a)
    return total


def _is_new(spec: Any) -> bool:
    return isinstance(spec, tuple) and spec[0] == "new"
