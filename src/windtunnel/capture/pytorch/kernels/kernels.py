"""One Python kernel for every operator of the simulated backend.

    torch dispatcher ──> kernel(op, args) ──> memo by (op, shapes, strides, dtypes, scalars)
                                   │              └─ miss: run torch's own meta kernel once
                                   └──> new outputs (ALLOC rows), one OP row

Kernels are below autograd and autocast, like those of a real device. registration.py decides which operators are
handled here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.known_values import (
    Fill,
    covers_storage,
    discard_values,
    follow_values,
    make_known,
)
from windtunnel.capture.pytorch.kernels.shape_inference import Entry, infer, resize_out
from windtunnel.capture.pytorch.tensors.storage import CPU, WORKSPACE, new_tensor, sim_of, sims, world
from windtunnel.capture.pytorch.tensors.templates import storage_id
from windtunnel.events.model import NO_NAME, Phase

__all__ = [
    "DeviceMismatch",
    "call_kernel",
    "kernel_for",
    "locate_backward",
    "run_generic",
    "written_arguments",
]

Tensor = torch.Tensor
_BACKWARD = int(Phase.BACKWARD)
_current_node = torch._C._current_autograd_node

# Autograd node -> module path; set by program.py.
module_of_node: Callable[[Any], int] = lambda node: NO_NAME


class DeviceMismatch(RuntimeError):
    """Tensors of one operator are on different devices, as torch itself would say it."""


_memo: dict[Any, Entry] = {}


def kernel_for(op: Any) -> Callable[..., Any]:
    """The Python kernel of one operator overload: it creates the results from the memo."""
    written = written_arguments(op)
    is_random = torch.Tag.nondeterministic_seeded in op.tags

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _run(op, args, kwargs, written, is_random)

    def overwriting_kernel(*args: Any, **kwargs: Any) -> Any:
        for i in written:
            target = _argument(op, args, kwargs, i)
            if not (is_random and target.requires_grad):  # small weights are as unknown as large ones
                make_known(target)
        return _run(op, args, kwargs, written, is_random)

    is_drawn = not is_random or world.device_type == "cpu"
    chosen = overwriting_kernel if written and is_drawn and _overwrites(op) else kernel
    number = _FILLED_WITH.get(op._schema.name.partition("::")[2])
    return chosen if number is None else _filling(chosen, number)


_FILLED_WITH: dict[str, int | str] = {
    "zeros": 0, "zeros_like": 0, "new_zeros": 0, "zero_": 0, "ones": 1, "ones_like": 1, "new_ones": 1,
    "full": "fill_value", "full_like": "fill_value", "new_full": "fill_value", "fill_": "value",
}  # fmt: skip


def _filling(kernel: Callable[..., Any], number: int | str) -> Callable[..., Any]:
    """A kernel that fills with one number, which is remembered where the values are not."""

    def filling_kernel(*args: Any, **kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        sim = sims.get(storage_id(result))
        if sim is not None and sim.values is None and covers_storage(result, sim):
            value = kwargs.get("fill_value", args[-1]) if isinstance(number, str) else number
            if isinstance(value, (bool, int, float)):
                sim.values = Fill(value)
        return result

    return filling_kernel


_FILLS = frozenset(
    "fill_ zero_ random_ uniform_ normal_ bernoulli_ exponential_ log_normal_ cauchy_ geometric_".split()
)


def _overwrites(op: Any) -> bool:
    """Whether an operator overwrites its target without reading it: `fill_`, `uniform_` and every `out=`."""
    name = op._schema.name.partition("::")[2]
    return name in _FILLS or any(a.is_out for a in op._schema.arguments)


def written_arguments(op: Any) -> tuple[int, ...]:
    """Positions of the arguments an operator writes to."""
    return tuple(
        i for i, a in enumerate(op._schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    )


def call_kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The fallback for operators outside aten: their own registered fake (meta) kernel gives the shapes."""
    return _run(op, args, kwargs, written_arguments(op), True)


def run_generic(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator without its special handler; for handlers that only adjust arguments."""
    return _run(op, args, kwargs, written_arguments(op), torch.Tag.nondeterministic_seeded in op.tags)


def _run(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: tuple[int, ...], is_random: bool
) -> Any:
    key: list[Any] = [op]
    tensors: list[Tensor] = []
    for a in args:
        _describe(a, key, tensors)
    if kwargs:
        for name, a in kwargs.items():
            key.append(name)
            _describe(a, key, tensors)
    # -- devices, storages, known values in one pass
    device = None
    device_index = -1
    inputs: list[int] = []
    is_known = not is_random or world.device_type == "cpu"  # the host has its own random numbers
    has_host = is_lazy = False
    for t in tensors:
        sim = sims.get(storage_id(t))
        if sim is None:
            if t.dim():
                has_host = True
            continue
        if device is None:
            device, device_index = sim.device, sim.device_index
        elif sim.device_index != device_index and sim.device != device:
            device = _settle_device(op, tensors, device, sim.device, t)
            device_index = world.index_of_device.get(device, -1)
        values = sim.values
        if values is None:
            is_known = False
        elif values.__class__ is not Tensor:
            if values.is_followed:
                is_lazy = True
            else:
                is_known = False
        inputs.append(sim.id)
    if has_host and device is not None and device != CPU and not _takes_empty_host_tensors(op, tensors):
        raise _mismatch(op, tensors)
    if device is None:
        device = world.target or world.default_device
        device_index = world.index_of_device.get(device, -1)
        key.append(args)  # a constructor's numbers decide its shape, floats included
    elif device_index < 0:  # an empty tensor is on a device, but has no memory there
        device_index = world.index_of_device.get(device, -1)
    entry = _recall(op, args, kwargs, tuple(key), tensors)
    # -- record
    recorder = world.recorder
    if recorder.phase == _BACKWARD:
        locate_backward(recorder)
    id = recorder.n_ops
    recorder.n_ops = id + 1
    world.op = id
    outputs: list[int] = []
    if entry.pattern is None or not entry.pattern.resizes:
        _resize_outs(entry, op, args, kwargs)
    make = _make_results if entry.pattern is None else _follow_pattern
    results = make(entry, op, args, kwargs, device, outputs)
    world.op = -1
    if device_index >= 0:
        recorder.write_op(id, entry.signature, device_index, inputs, outputs)
    if is_lazy:
        from windtunnel.capture.pytorch.kernels.lazy_values import follow_lazily  # late: few programs need it

        follow_lazily(op, args, kwargs, results, entry, written, is_random and world.device_type != "cpu")
    elif is_known:
        follow_values(op, args, kwargs, results, entry)
    elif written:
        for i in written:
            discard_values(_argument(op, args, kwargs, i))
    if entry.out_is_list == 0:
        return results[0] if results else None
    return results if entry.out_is_list == 1 else tuple(results)


def _recall(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: tuple[Any, ...], tensors: list[Tensor]
) -> Entry:
    """The memo's entry for this signature; inferred with torch the first time."""
    try:
        entry = _memo.get(key)
    except TypeError:  # something unhashable (a generator, a list of lists): infer every time
        return infer(op, args, kwargs, tensors)
    if entry is None:
        entry = _memo[key] = infer(op, args, kwargs, tensors)
    return entry


def _make_results(
    entry: Entry,
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
    outputs: list[int],
) -> list[Any]:
    """The results, each with a new storage unless it is one of the arguments."""
    recorder = world.recorder
    results: list[Any] = []
    for spec in entry.outputs:
        if spec.__class__ is not tuple:
            results.append(spec)
        elif spec[0] == "new":
            results.append(new_tensor(spec[1], spec[2], spec[3], device, spec[4]))
            outputs.append(recorder.n_storages)
        else:
            results.append(_argument(op, args, kwargs, spec[1]))
    return results


def _resize_outs(entry: Entry, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for name, shape, strides in entry.resizes:
        resize_out(op, args, kwargs, name, shape, strides)


def _follow_pattern(
    entry: Entry,
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
    outputs: list[int],
) -> list[Any]:
    """Allocate as the measured kernel does: results and scratch in its own order."""
    skipped = entry.pattern.n_numbers if entry.pattern.n_numbers and _are_numbers_saved() else 0
    scratch: dict[int, Any] = {}
    results = [
        _argument(op, args, kwargs, s[1]) if s.__class__ is tuple and s[0] == "arg" else s
        for s in entry.outputs
    ]
    for kind, which, n_bytes in entry.pattern.steps:
        if kind == "output":
            spec = entry.outputs[which]
            results[which] = new_tensor(spec[1], spec[2], spec[3], device, spec[4])
            outputs.append(world.recorder.n_storages)
        elif kind == "free":
            del scratch[which]
        elif kind == "resize":
            _resize_outs(entry, op, args, kwargs)
        elif skipped:
            skipped -= 1
            scratch[which] = None
        else:
            scratch[which] = _scratch(n_bytes, device)
    return results


def _are_numbers_saved() -> bool:
    """In backward, the number of `x * 2` is the one its node saved in forward: it is not allocated again."""
    node = _current_node() if world.recorder.phase == _BACKWARD else None
    return node is not None and hasattr(node, "_raw_saved_other")


def _scratch(n_bytes: int, device: torch.device) -> Tensor:
    return new_tensor((n_bytes,), (1,), torch.uint8, device, n_bytes, WORKSPACE)


def locate_backward(recorder: Any) -> None:
    """In backward, the module is the one whose forward made the autograd node that is running."""
    if recorder.phase == _BACKWARD:
        node = _current_node()
        if node is not None:
            recorder.module = module_of_node(node)


def _describe(a: Any, key: list[Any], tensors: list[Tensor]) -> None:
    """Append what decides the result's metadata. Floats count by type only: they never decide a shape."""
    if isinstance(a, Tensor):
        tensors.append(a)
        key.append(a.shape)
        key.append(a.stride())
        key.append(a.dtype)
        return
    kind = a.__class__
    if kind is float or kind is complex:
        key.append(kind)
    elif kind is bool:
        key.append("T" if a else "F")
    elif kind is list or kind is tuple or isinstance(a, (list, tuple)):
        key.append(len(a))
        for each in a:
            _describe(each, key, tensors)
    else:
        key.append(a)


# -- arguments and devices --------------------------------------------------------------------------------------


def _argument(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], where: int | str) -> Any:
    """An argument by position or, when it came as a keyword, by name."""
    if isinstance(where, str):
        return kwargs[where]
    return args[where] if where < len(args) else kwargs.get(op._schema.arguments[where].name)


def _settle_device(
    op: Any, tensors: list[Tensor], device: torch.device, other: torch.device, t: Tensor
) -> torch.device:
    """Two devices in one operator: only 0-dim host tensors may be combined with another device.

    torch's own formulas for backward make numbers on the device of a gradient, which inside torch is the same for all of
    ours: that of a gradient on the host is taken for the accelerator's.
    """
    if other == CPU and t.dim() == 0:
        return device
    if _is_scalar_on_host(tensors, device):
        return other
    if world.recorder.phase == _BACKWARD and device == CPU and _is_number(t):
        return CPU
    raise _mismatch(op, tensors)


def _is_number(t: Tensor) -> bool:
    """A 0-dim tensor whose value is known: a constant of a formula."""
    return t.dim() == 0 and (sim := sim_of(t)) is not None and sim.values is not None


def _is_scalar_on_host(tensors: list[Tensor], device: torch.device) -> bool:
    """Whether all tensors on `device` so far are 0-dim host tensors, which may be combined with any device."""
    if device != CPU:
        return False
    return all(t.dim() == 0 for t in tensors if (s := sim_of(t)) is not None and s.device == CPU)


def _takes_empty_host_tensors(op: Any, tensors: list[Tensor]) -> bool:
    """xFormers passes `torch.Tensor()` where there is no random state."""
    is_attention = op._schema.name == "aten::_efficient_attention_backward"
    return is_attention and all(t.numel() == 0 for t in tensors if sim_of(t) is None)


def _mismatch(op: Any, tensors: list[Tensor]) -> DeviceMismatch:
    seen: list[str] = []
    for t in tensors:
        name = str(s.device) if (s := sim_of(t)) is not None else "cpu"
        if name not in seen and not (name == "cpu" and t.dim() == 0):
            seen.append(name)
    return DeviceMismatch(
        f"Expected all tensors to be on the same device, but found at least two devices, {' and '.join(seen[:2])}!"
        f" (when running {op})"
    )
