"""One Python kernel for every operator of the simulated backend.

    torch dispatcher ──> kernel(op, args) ──> memo by (op, shapes, strides, dtypes, scalars)
                                   │              └─ miss: ask torch's own meta kernel once
                                   └──> new outputs (ALLOC rows), one OP row

Kernels sit below autograd and autocast, where a device's kernels sit, and are registered with the dispatcher
itself, so they serve every thread (autograd's device thread, data loaders) without any mode being active.
Operators that torch composes from others (CompositeImplicit) and plain views stay torch's own C++.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from windtunnel.capture import torch_storage as store
from windtunnel.capture.torch_molds import storage_id
from windtunnel.capture.torch_storage import CPU, new_tensor, sim_of, sims, world
from windtunnel.events.model import NO_NAME, Kind, Phase, Signature, TensorSpec

__all__ = ["KNOWN_VALUE_LIMIT", "DeviceMismatch", "call_kernel", "install_kernels", "kernel_for", "special"]

KNOWN_VALUE_LIMIT = 1 << 18  # bytes: values of small tensors are carried along when every input is known

Tensor = torch.Tensor
_META = torch.device("meta")
_BACKWARD = int(Phase.BACKWARD)
_OP = int(Kind.OP)
_current_node = torch._C._current_autograd_node
_empty_meta = torch.empty_strided

# op name ("aten::mm") -> handler(op, args, kwargs); filled by torch_operators.py before install_kernels.
special: dict[str, Callable[..., Any]] = {}
# What the target's kernel returns and allocates, where it can be asked: results as the meta kernel says, and the
# order of allocations (None: the results in order). Replaced when the CPU itself is the device.
ask_kernel: Callable[[Any, tuple[Any, ...], dict[str, Any], list[Any]], tuple[list[Any], Pattern | None]]
ask_kernel = lambda op, args, kwargs, outputs: (outputs, None)
# What autograd node belongs to which module path; set by torch_program.py.
module_of_node: Callable[[Any], int] = lambda node: NO_NAME

class DeviceMismatch(RuntimeError):
    """Tensors of one operator are on different devices, as torch itself would say it."""


class Pattern:
    """Allocation steps of one kernel: ("output" | "scratch" | "free", which, bytes)."""

    __slots__ = ("n_numbers", "steps")

    def __init__(self, steps: list[tuple[str, int, int]], n_numbers: int) -> None:
        self.steps = steps
        self.n_numbers = n_numbers  # the first so many scratch steps are Python numbers torch wraps into tensors


class Entry:
    """What the memo holds: how to make the results of one operator on one set of shapes."""

    __slots__ = ("out_is_list", "outputs", "pattern", "resizes", "signature")

    def __init__(self, signature: int, outputs: list[Any], out_is_list: int, resizes: list[Any], pattern: Any) -> None:
        self.signature = signature
        self.outputs = outputs  # ("new", shape, strides, dtype, bytes) | ("arg", position) | None | plain value
        self.out_is_list = out_is_list  # 0 a single value, 1 a list, 2 a tuple
        self.resizes = resizes  # (name of an out= argument, its new shape and strides)
        self.pattern = pattern  # allocation steps, or None: the outputs in order


_memo: dict[Any, Entry] = {}
_lib = torch.library.Library("aten", "IMPL")
_any_lib = torch.library.Library("_", "IMPL")


def install_kernels() -> None:
    """Register a kernel for every aten operator that a device must bring itself."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        if name not in special:
            is_composite = has(name, "CompositeImplicitAutograd") and not has(name, "CPU")
            if is_composite or _is_quantized_or_sparse(name):
                continue
            if has(name, "CompositeExplicitAutograd") and (_is_view(name) or _stays_composite(name)):
                continue
        _lib.impl(name[6:], kernel_for(_overload(name)), "PrivateUse1")
    _any_lib.fallback(call_kernel, "PrivateUse1")


def kernel_for(op: Any) -> Callable[..., Any]:
    """The Python kernel of one operator overload."""
    handler = special.get(op._schema.name + ("." + op._overloadname if op._overloadname != "default" else ""))
    if handler is None:
        handler = special.get(op._schema.name)
    if handler is not None:
        return lambda *args, **kwargs: handler(op, args, kwargs)
    written = tuple(i for i, a in enumerate(op._schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
    is_random = torch.Tag.nondeterministic_seeded in op.tags

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _run(op, args, kwargs, written, is_random)

    return kernel


def call_kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The fallback for operators outside aten: their own registered fake (meta) kernel gives the shapes."""
    written = tuple(i for i, a in enumerate(op._schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
    return _run(op, args, kwargs, written, True)


def run_generic(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operator without a special handler does; for handlers that only adjust their arguments."""
    written = tuple(i for i, a in enumerate(op._schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
    return _run(op, args, kwargs, written, torch.Tag.nondeterministic_seeded in op.tags)


def _run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: tuple[int, ...], is_random: bool) -> Any:
    recorder = world.recorder
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
    is_known = not is_random
    has_host = False
    for t in tensors:
        sim = sims.get(storage_id(t))
        if sim is None:
            if t.dim():
                has_host = True
            continue
        if device is None:
            device, device_index = sim.device, sim.device_index
        elif sim.device_index != device_index and sim.device != device:
            if sim.n_bytes > t.element_size() or t.dim():
                if _is_scalar_on_host(tensors, device):
                    device, device_index = sim.device, sim.device_index
                elif not (sim.device == CPU and t.dim() == 0):
                    raise _mismatch(op, tensors)
        if sim.values is None:
            is_known = False
        inputs.append(sim.id)
    if has_host and device is not None and device != CPU:
        raise _mismatch(op, tensors)
    if device is None:
        device = world.target or world.default_device
        device_index = world.index_of_device.get(device, -1)
        key.append(args)  # a constructor's numbers decide its shape, floats included
    memo_key = tuple(key)
    try:
        entry = _memo.get(memo_key)
    except TypeError:  # something unhashable (a generator, a list of lists): compute every time
        entry, memo_key = None, None  # type: ignore[assignment]
    if entry is None:
        entry = _infer(op, args, kwargs, tensors)
        if memo_key is not None:
            _memo[memo_key] = entry
    # -- record
    if recorder.phase == _BACKWARD:
        locate_backward(recorder)
    id = recorder.n_ops
    recorder.n_ops = id + 1
    world.op = id
    results: list[Any] = []
    outputs: list[int] = []
    for name, shape, strides in entry.resizes:
        _resize_out(op, args, kwargs, name, shape, strides)
    if entry.pattern is not None:
        results = _follow_pattern(entry, op, args, kwargs, device, outputs)
    else:
        for spec in entry.outputs:
            if spec.__class__ is tuple:
                if spec[0] == "new":
                    t = new_tensor(spec[1], spec[2], spec[3], device, spec[4])
                    outputs.append(recorder.n_storages)
                else:
                    t = _argument(op, args, kwargs, spec[1])
                results.append(t)
            else:
                results.append(spec)
    world.op = -1
    if device_index >= 0:
        recorder.rows.append(
            (_OP, id, entry.signature, -1, 0, recorder.module, recorder.phase, recorder.stream, device_index,
             recorder.frame_here(), inputs, outputs)
        )  # fmt: skip
    if is_known:
        _follow_values(op, args, kwargs, results, entry)
    elif written:
        for i in written:
            _forget(_argument(op, args, kwargs, i))
    if entry.out_is_list == 0:
        return results[0] if results else None
    return results if entry.out_is_list == 1 else tuple(results)


def _follow_pattern(
    entry: Entry, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device, outputs: list[int]
) -> list[Any]:
    """Allocate as the measured kernel does: results and scratch in its own order."""
    skipped = entry.pattern.n_numbers if entry.pattern.n_numbers and _are_numbers_saved() else 0
    scratch: dict[int, Any] = {}
    results = [_argument(op, args, kwargs, s[1]) if s.__class__ is tuple and s[0] == "arg" else s for s in entry.outputs]
    for kind, which, n_bytes in entry.pattern.steps:
        if kind == "output":
            spec = entry.outputs[which]
            results[which] = new_tensor(spec[1], spec[2], spec[3], device, spec[4])
            outputs.append(world.recorder.n_storages)
        elif kind == "free":
            del scratch[which]
        elif skipped:
            skipped -= 1
            scratch[which] = None
        else:
            scratch[which] = _scratch(n_bytes, device)
    return results


def _are_numbers_saved() -> bool:
    """In backward, the number of `x * 2` is the one its node saved in forward: it is not made again."""
    node = _current_node() if world.recorder.phase == _BACKWARD else None
    return node is not None and hasattr(node, "_raw_saved_other")


def _scratch(n_bytes: int, device: torch.device) -> Tensor:
    return new_tensor((n_bytes,), (1,), torch.uint8, device, n_bytes, store.WORKSPACE)


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
        if a.dim() == 0 and storage_id(a) not in sims:
            key.append(_is_wrapped_number(a))
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


_HALF = torch.empty((), dtype=torch.float16)
_BYTE = torch.empty((), dtype=torch.uint8)


def _is_wrapped_number(a: Tensor) -> bool:
    """Whether torch made this 0-dim tensor from a Python number (it then gives way in type promotion)."""
    if a.dtype is torch.float64:
        return torch.result_type(_HALF, a) is torch.float16
    if a.dtype is torch.int64:
        return torch.result_type(_BYTE, a) is torch.uint8
    return False


# -- a memo miss: ask torch's meta kernels --------------------------------------------------------------------


def _infer(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Entry:
    as_meta: dict[int, Tensor] = {}
    meta_args = [_to_meta(a, as_meta) for a in args]
    meta_kwargs = {k: _META if k == "device" else _to_meta(a, as_meta) for k, a in kwargs.items()}
    if meta_kwargs.get("pin_memory"):
        meta_kwargs["pin_memory"] = False
    with torch._C._DisableFuncTorch():
        result = op(*meta_args, **meta_kwargs)
    position = {id(m): i for i, m in enumerate([*meta_args, *meta_kwargs.values()]) if isinstance(m, Tensor)}
    is_list = 1 if isinstance(result, list) else 2 if isinstance(result, tuple) else 0
    outputs = [_output_spec(r, position) for r in (result if is_list else [result])]
    outputs, pattern = ask_kernel(op, args, kwargs, outputs)
    resizes = _resized_outs(op, args, kwargs, meta_args, meta_kwargs)
    recorder = world.recorder
    signature = recorder.writer.signature(
        Signature(
            str(op),
            tuple(_tensor_spec(t) for t in tensors),
            tuple(_tensor_spec_of(s) for s in outputs if isinstance(s, tuple) and s[0] == "new"),
            _scalars_text(args, kwargs),
        )
    )
    return Entry(signature, outputs, is_list, resizes, pattern)


def _to_meta(a: Any, made: dict[int, Tensor]) -> Any:
    if isinstance(a, Tensor):
        if a.dim() == 0 and sim_of(a) is None:
            return a  # a host number: torch lets it meet any device, and its promotion rules must stay
        if id(a) not in made:
            made[id(a)] = _empty_meta(a.shape, a.stride(), dtype=a.dtype, device=_META)
        return made[id(a)]
    if isinstance(a, (list, tuple)):
        return [_to_meta(each, made) for each in a]
    if isinstance(a, torch.Generator):
        return None
    return a


def _output_spec(r: Any, position: dict[int, int]) -> Any:
    if not isinstance(r, Tensor):
        return r
    if id(r) in position:
        return ("arg", position[id(r)])
    shape, strides = tuple(r.shape), tuple(r.stride())
    return ("new", shape, strides, r.dtype, store.span_bytes(shape, strides, r.element_size()))


def _resized_outs(op: Any, args: Any, kwargs: Any, meta_args: list[Any], meta_kwargs: dict[str, Any]) -> list[Any]:
    """Which `out=` tensors torch would resize: their meta twins just were."""
    names = [a.name for a in op._schema.arguments]
    pairs = [*zip(names, args, meta_args, strict=False), *((k, kwargs[k], meta_kwargs[k]) for k in kwargs)]
    return [
        (name, tuple(meta.shape), tuple(meta.stride()))
        for name, given, meta in pairs
        if isinstance(given, Tensor) and isinstance(meta, Tensor) and given.shape != meta.shape
    ]


def _resize_out(op: Any, args: Any, kwargs: Any, name: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    names = [a.name for a in op._schema.arguments]
    tensor = kwargs[name] if name in kwargs else args[names.index(name)]
    sim = sim_of(tensor)
    if sim is not None:
        fresh = new_tensor(shape, strides, tensor.dtype, sim.device)
        store.set_storage(tensor, fresh.untyped_storage(), 0, shape, strides)


def _tensor_spec(t: Tensor) -> TensorSpec:
    return TensorSpec(tuple(t.shape), tuple(t.stride()), str(t.dtype)[6:])


def _tensor_spec_of(spec: tuple[Any, ...]) -> TensorSpec:
    return TensorSpec(spec[1], spec[2], str(spec[3])[6:])


def _scalars_text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    def text(a: Any) -> str:
        if isinstance(a, Tensor):
            return "_"
        if isinstance(a, (list, tuple)):
            return "[" + ",".join(text(x) for x in a[:8]) + ("…]" if len(a) > 8 else "]")
        return repr(a)

    return ",".join([*(text(a) for a in args), *(f"{k}={text(a)}" for k, a in kwargs.items())])


# -- known values ---------------------------------------------------------------------------------------------


def _follow_values(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Any], entry: Entry) -> None:
    """Every input's values are known and few: compute the results for real as well."""
    total = sum(s[4] for s in entry.outputs if s.__class__ is tuple and s[0] == "new")
    if total > KNOWN_VALUE_LIMIT:
        return
    try:
        real = op(*[_to_real(a) for a in args], **{k: CPU if k == "device" else _to_real(a) for k, a in kwargs.items()})
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        for r in results:
            _forget(r)
        return
    for sim_result, real_result in zip(results, real if entry.out_is_list else [real], strict=False):
        if isinstance(sim_result, Tensor) and isinstance(real_result, Tensor):
            store.remember_values(sim_result, real_result, KNOWN_VALUE_LIMIT)


def _to_real(a: Any) -> Any:
    if isinstance(a, Tensor):
        return store.values_of(a)
    if isinstance(a, (list, tuple)):
        return [_to_real(each) for each in a]
    return a


def _forget(a: Any) -> None:
    if isinstance(a, Tensor):
        sim = sim_of(a)
        if sim is not None:
            sim.values = None
    elif isinstance(a, (list, tuple)):
        for each in a:
            _forget(each)


# -- small questions ------------------------------------------------------------------------------------------


def _argument(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], position: int) -> Any:
    if position < len(args):
        return args[position]
    return kwargs.get(op._schema.arguments[position].name) if len(op._schema.arguments) > position else None


def _is_scalar_on_host(tensors: list[Tensor], device: torch.device) -> bool:
    """Whether what was seen so far on `device` is only 0-dim host tensors, which may meet any device."""
    if device != CPU:
        return False
    return all(t.dim() == 0 for t in tensors if (s := sim_of(t)) is not None and s.device == CPU)


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


def _overload(name: str) -> Any:
    base, _, overload = name[6:].partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def _is_view(name: str) -> bool:
    schema = _overload(name)._schema
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _stays_composite(name: str) -> bool:
    """On the CPU torch's own composition runs, down to the kernels, exactly as without us."""
    if world.device_type != "cpu" or name in _CHOSEN_BY_DEVICE:
        return False
    return not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")


# Compositions that ask which device a tensor is on, and so must be taken before they ask.
_CHOSEN_BY_DEVICE = frozenset({"aten::convolution", "aten::convolution_backward", "aten::_convolution", "aten::_to_copy"})


def _is_quantized_or_sparse(name: str) -> bool:
    if name.startswith("aten::mkldnn_rnn_layer"):
        return False
    return any(word in name for word in ("sparse", "quantize", "mkldnn", "_nested", "q_", "qscheme", "coalesce"))
