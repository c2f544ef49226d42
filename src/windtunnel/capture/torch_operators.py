"""Operators whose result a meta kernel cannot tell: views, copies between devices, and values.

    special["aten::name"] = handler(op, args, kwargs)

Values that do not exist get documented defaults (docs/unknown-values.md): 1 for numbers, True for truth, and for
shapes that depend on values the largest possible result ("every element is selected, every value is distinct").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from windtunnel.capture import torch_kernels as kernels
from windtunnel.capture import torch_storage as store
from windtunnel.capture.torch_inference import tensor_spec
from windtunnel.capture.torch_storage import CPU, KNOWN_VALUE_LIMIT, new_tensor, sim_of, view_of, world
from windtunnel.capture.torch_strides import contiguous_strides, preserved_strides, strides_for
from windtunnel.capture.torch_values import all_false, remember_values, values_of
from windtunnel.events.model import Kind, Phase, Role, Signature

__all__ = ["default_value", "special"]

Tensor = torch.Tensor
aten = torch.ops.aten


special: dict[str, Callable[..., Any]] = {}  # operator name with overload -> handler(op, args, kwargs)


def _rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            special["aten::" + name] = handler
        return handler

    return register


# -- views and storages -----------------------------------------------------------------------------------


@_rule("as_strided")
def _as_strided(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    return view_of(args[0], args[1], args[2], offset)


_view = torch.library.get_kernel("aten::view", "CPU").call_boxed
_reshape_alias = torch.library.get_kernel("aten::_reshape_alias", "CPU").call_boxed
_unfold = torch.library.get_kernel("aten::unfold", "CPU").call_boxed
_view_dtype = torch.library.get_kernel("aten::view.dtype", "CPU").call_boxed


@_rule("view", "_unsafe_view")
def _view_kernel(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _view(store._CPU_KEYS, *args)


@_rule("view.dtype")
def _view_dtype_kernel(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _view_dtype(store._CPU_KEYS, *args)


@_rule("_reshape_alias")
def _reshape_alias_kernel(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _reshape_alias(store._CPU_KEYS, *args)


@_rule("unfold")
def _unfold_kernel(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _unfold(store._CPU_KEYS, *args)


def _views(name: str) -> None:
    """Torch's own kernel for the CPU only moves sizes and strides here, so it serves any backend."""
    kernel = torch.library.get_kernel("aten::" + name, "CPU").call_boxed
    special["aten::" + name] = lambda op, args, kwargs: kernel(store._CPU_KEYS, *args, **kwargs)


_views("view_as_real")
_views("view_as_complex")
_views("as_strided_")


@_rule("lift")
def _lift(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0]


@_rule("set_.source_Storage_storage_offset")
def _set_storage_offset(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensor, storage, offset, shape = args[:4]
    strides = args[4] if len(args) > 4 and args[4] else contiguous_strides(shape)
    return store.set_storage(tensor, storage, offset, shape, strides)


@_rule("set_.source_Storage")
def _set_source_storage(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensor, storage = args
    n = storage.nbytes() // tensor.element_size()
    return store.set_storage(tensor, storage, 0, (n,), (1,))


@_rule("set_.source_Tensor")
def _set_tensor(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensor, source = args
    return store.set_storage(
        tensor, source.untyped_storage(), source.storage_offset(), tuple(source.shape), source.stride()
    )


@_rule("resize_")
def _resize(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensor, shape = args[0], tuple(args[1])
    strides = contiguous_strides(shape)
    sim = sim_of(tensor)
    n_bytes = store.span_bytes(shape, strides, tensor.element_size())
    storage = tensor.untyped_storage()
    if sim is None or sim.n_bytes < n_bytes:
        storage = store.new_storage(n_bytes, sim.device if sim else _target())
    return store.set_storage(tensor, storage, 0, shape, strides)


# -- constructors -----------------------------------------------------------------------------------------


@_rule("empty.memory_format")
def _empty(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    shape = tuple(args[0])
    memory_format = kwargs.get("memory_format") or (args[5] if len(args) > 5 else None)
    return new_tensor(
        shape, strides_for(shape, memory_format), kwargs.get("dtype") or torch.get_default_dtype(), _target()
    )


@_rule("empty_strided")
def _empty_strided(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return new_tensor(
        tuple(args[0]), tuple(args[1]), kwargs.get("dtype") or torch.get_default_dtype(), _target()
    )


def _target() -> torch.device:
    return world.target or world.default_device


# -- copies between devices -------------------------------------------------------------------------------


@_rule("copy_")
def _copy(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    target, source = args[0], args[1]
    to, come = sim_of(target), sim_of(source)
    known = values_of(source)
    if to is None:  # device to a real host tensor
        if known is not None:
            target.copy_(known)
        else:
            world.recorder.invent("a copy of device values to the host", 1)
            target.fill_(1)
        return target
    _broadcast_check(target, source)
    if known is not None and to.n_bytes <= KNOWN_VALUE_LIMIT:
        if to.values is None or target.numel() * target.element_size() == to.n_bytes:
            known = known.expand(target.shape) if known.shape != target.shape else known
        remember_values(target, known)
    else:
        to.values = None
    if to.device_index >= 0:
        _record_copy(target, source, to, come)
    return target


def _broadcast_check(target: Tensor, source: Tensor) -> None:
    if source.shape != target.shape and torch.broadcast_shapes(source.shape, target.shape) != target.shape:
        raise RuntimeError(
            f"The size of tensor a {tuple(target.shape)} must match the size of tensor b {tuple(source.shape)}"
        )


_copy_signatures: dict[Any, int] = {}


def _record_copy(target: Tensor, source: Tensor, to: store.SimStorage, come: store.SimStorage | None) -> None:
    recorder = world.recorder
    from_host = come is None or come.device != to.device
    key = (
        target.shape,
        target.stride(),
        target.dtype,
        source.shape,
        source.stride(),
        source.dtype,
        from_host,
    )
    signature = _copy_signatures.get(key)
    if signature is None:
        spec = Signature(
            "aten.copy_.default" if not from_host else "memcpy.host_to_device",
            (tensor_spec(target), tensor_spec(source)), (), "",
        )  # fmt: skip
        signature = _copy_signatures[key] = recorder.writer.signature(spec)
    kernels.locate_backward(recorder)
    id = recorder.n_ops
    recorder.n_ops = id + 1
    inputs = (to.id,) if come is None else (to.id, come.id)
    recorder.rows.append(
        (Kind.OP, id, signature, -1, 0, recorder.module, recorder.phase, recorder.stream, to.device_index,
         recorder.frame_here(), inputs, ())
    )  # fmt: skip
    if from_host and to.role == 0 and recorder.phase == Phase.FORWARD:
        to.role = int(Role.INPUT)
        recorder.mark(to.id, Role.INPUT)


@_rule("_to_copy")
def _to_copy(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    source = args[0]
    dtype = kwargs.get("dtype") or source.dtype
    sim = sim_of(source)
    device = world.target or (sim.device if sim else world.default_device)
    wanted = kwargs.get("device")
    if wanted is not None and wanted.type != store.SIM.type:
        device = wanted  # to the host (or meta): named by torch's own code
        if wanted.type == "meta":
            return torch.empty_strided(source.shape, source.stride(), dtype=dtype, device=wanted)
        if sim is not None and sim.device == wanted and dtype == source.dtype and not dtype.is_floating_point:
            return view_of(source, source.shape, source.stride())  # torch's C++ asks for the host, where it is already
    shape = tuple(source.shape)
    memory_format = kwargs.get("memory_format")
    if memory_format in (None, torch.preserve_format):
        strides = preserved_strides(source)
    else:
        strides = strides_for(shape, memory_format)
    result = new_tensor(shape, strides, dtype, device)
    _copy(aten.copy_.default, (result, source), {})
    return result


# -- values -----------------------------------------------------------------------------------------------


@_rule("_local_scalar_dense")
def _item(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    known = values_of(args[0])
    if known is not None:
        return known.item()
    value = unknown_value(args[0])
    world.recorder.invent(_what_was_read(), value)
    return value


def unknown_value(tensor: Tensor) -> Any:
    """What an unknown element of this tensor reads as."""
    value = default_value(tensor.dtype)
    sim = sim_of(tensor)
    return type(value)(0) if sim is not None and sim.id in all_false else value


def default_value(dtype: torch.dtype) -> Any:
    """What an unknown element reads as: 1, or True."""
    if dtype is torch.bool:
        return True
    return 1.0 if dtype.is_floating_point else complex(1) if dtype.is_complex else 1


def _what_was_read() -> str:
    return "the value of a device tensor (.item(), float(), int(), bool(), if)"


@_rule("equal")
def _equal(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    a, b = args
    if a.shape != b.shape:
        return False
    known_a, known_b = values_of(a), values_of(b)
    if known_a is not None and known_b is not None:
        return torch.equal(known_a, known_b)
    world.recorder.invent("torch.equal of device tensors", True)
    return True


@_rule("nonzero")
def _nonzero(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    source = args[0]
    known = values_of(source)
    if known is not None:
        found = torch.nonzero(known)
        rows = found.shape[0]
    else:
        found, rows = None, source.numel()
        world.recorder.invent("how many elements are nonzero (nonzero, boolean mask)", rows)
    # CUDA and CPU both build (dim, n) and return it transposed
    result = _like(
        source,
        (rows, source.dim()),
        (1, rows) if source.dim() > 1 else (max(source.dim(), 1), 1),
        torch.int64,
    )
    if found is not None:
        remember_values(result, found)
    return result


@_rule("masked_select")
def _masked_select(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    source, mask = args
    shape = torch.broadcast_shapes(source.shape, mask.shape)
    known = values_of(mask)
    n = int(known.expand(shape).sum()) if known is not None else math.prod(shape)
    if known is None:
        world.recorder.invent("how many elements a mask selects", n)
    return _like(source, (n,), (1,), source.dtype)


@_rule("index.Tensor")
def _index(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return kernels.run_generic(op, (args[0], _masks_to_indices(args[0], args[1])), kwargs)


@_rule("index_put_", "_index_put_impl_", "_unsafe_index_put", "index_put")
def _index_put(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    if _is_masked_fill(op, args):
        (mask,) = (i for i in args[1] if i is not None)
        number = values_of(args[2])
        value = number.item() if number is not None else default_value(args[2].dtype)
        return kernels.run_generic(aten.masked_fill_.Scalar, (args[0], _to_device(mask, args[0]), value), {})
    indices = _masks_to_indices(args[0], args[1])
    values = args[2]
    if values.dim() and sim_of(values) is None:
        values = _to_device(values, args[0])
    return kernels.run_generic(op, (args[0], indices, values, *args[3:]), kwargs)


def _is_masked_fill(op: Any, args: tuple[Any, ...]) -> bool:
    """`x[mask] = 2`: one mask over the whole tensor and one number of the host, which torch's own kernel fills."""
    target, indices, values = args[:3]
    sim = sim_of(values)
    return (
        op in (aten.index_put_.default, aten._index_put_impl_.default)
        and not any(args[3:])
        and values.numel() == 1
        and (sim is None or sim.device == CPU)
        and len(indices) == 1
        and indices[0] is not None
        and indices[0].dtype is torch.bool
        and indices[0].shape == target.shape
    )


def _masks_to_indices(source: Tensor, indices: Any) -> list[Tensor | None]:
    """Boolean masks become index tensors, as torch's own kernel does first; host indices move to the device."""
    found: list[Tensor | None] = []
    for each in indices:
        if each is None:
            found.append(None)
        elif each.dtype in (torch.bool, torch.uint8):
            where = _nonzero(aten.nonzero.default, (_to_device(each, source),), {})
            found += [view_of(where, (where.shape[0],), (where.stride(0),), where.storage_offset() + i * where.stride(1))
                      for i in range(each.dim())]  # fmt: skip
        else:
            found.append(_to_device(each, source))
    return found


def _to_device(tensor: Tensor, like: Tensor) -> Tensor:
    sim, wanted = sim_of(tensor), sim_of(like)
    if wanted is None or (sim is not None and sim.device == wanted.device):
        return tensor
    if tensor.dim() == 0 and sim is None:
        return tensor
    moved = new_tensor(tuple(tensor.shape), preserved_strides(tensor), tensor.dtype, wanted.device)
    return _copy(aten.copy_.default, (moved, tensor), {})


@_rule("_unique2", "unique_dim", "unique_consecutive")
def _unique(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    source = args[0]
    named = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
    known = values_of(source)
    if known is not None:
        real = op(known, *args[1:], **kwargs)
        return tuple(_copied(r, source) for r in real)  # type: ignore[return-value]
    n = source.numel() if named.get("dim") is None else source.shape[named["dim"]]
    world.recorder.invent("how many distinct values there are (unique)", n)
    shape = (n,) if named.get("dim") is None else tuple(source.shape)
    inverse = tuple(source.shape) if named.get("return_inverse") else (0,)
    counts = (n,) if named.get("return_counts") else (0,)
    return (
        _like(source, shape, contiguous_strides(shape), source.dtype),
        _like(source, inverse, contiguous_strides(inverse), torch.int64),
        _like(source, counts, contiguous_strides(counts), torch.int64),
    )


@_rule("bincount")
def _bincount(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    source = args[0]
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    minlength = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    known = values_of(source)
    if known is not None and known.numel():
        n = max(int(known.max()) + 1, minlength)
    else:
        n = max(minlength, 1)
        world.recorder.invent("the largest value (bincount)", n - 1)
    result = _like(source, (n,), (1,), torch.float64 if weights is not None else torch.int64)
    if known is not None and (weights is None or values_of(weights) is not None):
        remember_values(result, torch.bincount(known, None if weights is None else values_of(weights), n))
    return result


@_rule("repeat_interleave.Tensor")
def _repeat_interleave(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    repeats = args[0]
    n = args[1] if len(args) > 1 else kwargs.get("output_size")
    known = values_of(repeats)
    if n is None and known is not None:
        n = int(known.sum())
    if n is None:
        n = repeats.numel()
        world.recorder.invent("how often to repeat (repeat_interleave)", 1)
    result = _like(repeats, (n,), (1,), repeats.dtype)
    if known is not None:
        remember_values(result, torch.repeat_interleave(known))
    return result


@_rule("_assert_async", "_assert_async.msg")
def _assert_async(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    return None


@_rule("_amp_foreach_non_finite_check_and_unscale_")
def _unscale(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # A simulated gradient is taken to be finite: GradScaler then steps, as it does on nearly every real step.
    found_inf = args[1]
    remember_values(found_inf, torch.zeros(found_inf.shape, dtype=found_inf.dtype))


@_rule("_amp_update_scale_")
def _update_scale(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0]


@_rule("record_stream")
def _record_stream(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    sim = sim_of(args[0])
    if sim is not None and sim.device_index >= 0:
        world.recorder.plain_row(
            Kind.RECORD_STREAM, sim.id, stream=args[1].stream_id, device=sim.device_index
        )


@_rule("is_pinned")
def _is_pinned(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    sim = sim_of(args[0])
    return sim is not None and sim.device == CPU


@_rule("_pin_memory", "pin_memory")
def _pin_memory(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0]


# -- results ----------------------------------------------------------------------------------------------


def _like(source: Tensor, shape: Any, strides: Any, dtype: torch.dtype) -> Tensor:
    sim = sim_of(source)
    return new_tensor(tuple(shape), tuple(strides), dtype, sim.device if sim else _target())


def _copied(real: Tensor, source: Tensor) -> Tensor:
    made = _like(source, real.shape, contiguous_strides(real.shape), real.dtype)
    remember_values(made, real)
    return made
