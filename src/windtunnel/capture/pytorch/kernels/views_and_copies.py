"""Operators whose result a meta kernel cannot describe: views, storages, and copies between devices.

    special["aten::name"] = handler(op, args, kwargs)

Operators that depend on values are in unknown_values.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels import kernels
from windtunnel.capture.pytorch.kernels.known_values import (
    Implied,
    all_false,
    carry_values,
    covers_storage,
    discard_values,
    is_floating,
    make_known,
    remember_values,
    values_of,
)
from windtunnel.capture.pytorch.kernels.shape_inference import tensor_spec
from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.tensors.storage import CPU, new_tensor, sim_of, view_of, world
from windtunnel.capture.pytorch.tensors.strides import contiguous_strides, preserved_strides, strides_for
from windtunnel.events.model import Kind, Phase, Role, Signature

__all__ = ["copy", "rule", "sent_before_forward", "special", "target_device"]

Tensor = torch.Tensor
aten = torch.ops.aten


special: dict[str, Callable[..., Any]] = {}  # operator name with overload -> handler(op, args, kwargs)


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            special["aten::" + name] = handler
        return handler

    return register


# -- views and storages -----------------------------------------------------------------------------------


@rule("as_strided")
def _as_strided(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    return view_of(args[0], args[1], args[2], offset)


_view = torch.library.get_kernel("aten::view", "CPU").call_boxed
_reshape_alias = torch.library.get_kernel("aten::_reshape_alias", "CPU").call_boxed
_unfold = torch.library.get_kernel("aten::unfold", "CPU").call_boxed
_view_dtype = torch.library.get_kernel("aten::view.dtype", "CPU").call_boxed


@rule("view", "_unsafe_view")
def _view_kernel(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _view(store._CPU_KEYS, *args)


@rule("view.dtype")
def _view_dtype_kernel(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _view_dtype(store._CPU_KEYS, *args)


@rule("_reshape_alias")
def _reshape_alias_kernel(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _reshape_alias(store._CPU_KEYS, *args)


@rule("unfold")
def _unfold_kernel(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _unfold(store._CPU_KEYS, *args)


def _views(name: str) -> None:
    """Torch's own CPU kernel only changes sizes and strides here, so it works for any backend."""
    kernel = torch.library.get_kernel("aten::" + name, "CPU").call_boxed
    special["aten::" + name] = lambda op, args, kwargs: kernel(store._CPU_KEYS, *args, **kwargs)


_views("view_as_real")
_views("view_as_complex")
_views("as_strided_")


@rule("lift")
def _lift(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0]


@rule("set_.source_Storage_storage_offset")
def _set_storage_offset(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensor, storage, offset, shape = args[:4]
    strides = args[4] if len(args) > 4 and args[4] else contiguous_strides(shape)
    return store.set_storage(tensor, storage, offset, shape, strides)


@rule("set_.source_Storage")
def _set_source_storage(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensor, storage = args
    n = storage.nbytes() // tensor.element_size()
    return store.set_storage(tensor, storage, 0, (n,), (1,))


@rule("set_.source_Tensor")
def _set_tensor(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensor, source = args
    return store.set_storage(
        tensor, source.untyped_storage(), source.storage_offset(), tuple(source.shape), source.stride()
    )


@rule("resize_")
def _resize(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensor, shape = args[0], tuple(args[1])
    strides = contiguous_strides(shape)
    sim = sim_of(tensor)
    n_bytes = store.span_bytes(shape, strides, tensor.element_size())
    storage = tensor.untyped_storage()
    if sim is None or sim.n_bytes < n_bytes:
        storage = store.new_storage(n_bytes, sim.device if sim else target_device())
        if sim is not None:
            carry_values(sim, store.sims[storage._cdata], tensor.dtype)
    return store.set_storage(tensor, storage, 0, shape, strides)


# -- constructors -----------------------------------------------------------------------------------------


@rule("empty.memory_format")
def _empty(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    shape = tuple(args[0])
    memory_format = kwargs.get("memory_format") or (args[5] if len(args) > 5 else None)
    return _blank(
        shape,
        strides_for(shape, memory_format),
        kwargs.get("dtype") or torch.get_default_dtype(),
        target_device(),
    )


@rule("empty_strided")
def _empty_strided(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _blank(
        tuple(args[0]), tuple(args[1]), kwargs.get("dtype") or torch.get_default_dtype(), target_device()
    )


@rule("new_empty")
def _new_empty(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Sharding creates thousands of these, nearly all without a single element."""
    source, shape = args[0], tuple(args[1])
    sim = sim_of(source) if kwargs.get("device") is None else None
    device = sim.device if sim is not None else target_device()
    return _blank(shape, strides_for(shape, None), kwargs.get("dtype") or source.dtype, device)


def _blank(shape: Any, strides: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the CPU a program fills index tensors part by part (`out[0] = 0; cumsum(x, out=out[1:])`) and reads them."""
    made = new_tensor(shape, strides, dtype, device)
    if world.device_type == "cpu" and not is_floating(dtype):
        make_known(made)
    return made


def target_device() -> torch.device:
    return world.target or world.default_device


# -- copies between devices -------------------------------------------------------------------------------


@rule("copy_")
def copy(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    target, source = args[0], args[1]
    target_sim, source_sim = sim_of(target), sim_of(source)
    is_implied = source_sim is not None and target_sim is not None and isinstance(source_sim.values, Implied)
    known = None if is_implied else values_of(source)
    if (
        source_sim is not None
        and source_sim.device_index >= 0
        and (target_sim is None or target_sim.device_index < 0)
    ):
        _record_to_host(target, source, source_sim)
        if not _is_non_blocking(args, kwargs):
            world.recorder.read_value(source_sim.device_index)
    if target_sim is None:  # device to a real host tensor
        if known is not None:
            target.copy_(known)
        else:
            world.recorder.note_unknown("a copy of device values to the host", 1)
            target.fill_(1)
        return target
    _broadcast_check(target, source)
    if is_implied:
        from windtunnel.capture.pytorch.kernels.lazy_values import copy_implied  # late: few programs need it

        copy_implied(target, source)
    elif known is not None:
        if target_sim.values is None or target.numel() * target.element_size() == target_sim.n_bytes:
            known = known.expand(target.shape) if known.shape != target.shape else known
        remember_values(target, known)
    else:
        discard_values(target)
        if (
            all_false
            and source_sim is not None
            and source_sim.id in all_false
            and covers_storage(target, target_sim)
        ):
            all_false.add(target_sim.id)
    if target_sim.device_index >= 0:
        _record_copy(target, source, target_sim, source_sim)
    return target


def _is_non_blocking(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(args[2] if len(args) > 2 else kwargs.get("non_blocking"))


def _broadcast_check(target: Tensor, source: Tensor) -> None:
    if source.shape != target.shape and torch.broadcast_shapes(source.shape, target.shape) != target.shape:
        raise RuntimeError(
            f"The size of tensor a {tuple(target.shape)} must match the size of tensor b {tuple(source.shape)}"
        )


_copy_signatures: dict[Any, int] = {}
sent_before_forward: set[int] = set()  # storages that the host filled before any model was called


def _record_copy(
    target: Tensor, source: Tensor, target_sim: store.SimStorage, source_sim: store.SimStorage | None
) -> None:
    recorder = world.recorder
    if recorder.futures and source_sim is not None:
        recorder.wait_for_futures(source_sim.id)
    from_host = source_sim is None or source_sim.device != target_sim.device
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
    inputs = (target_sim.id,) if source_sim is None else (target_sim.id, source_sim.id)
    recorder.write_new_op(signature, target_sim.device_index, inputs)
    if from_host and target_sim.role == 0:
        if recorder.phase == Phase.FORWARD:
            target_sim.role = int(Role.INPUT)
            recorder.mark(target_sim.id, Role.INPUT)
        elif recorder.phase == Phase.BUILD:
            sent_before_forward.add(target_sim.id)  # weights of a model, or data: its first call tells


def _record_to_host(target: Tensor, source: Tensor, source_sim: store.SimStorage) -> None:
    """Record a copy to the host, whether the program waits for it or not."""
    recorder = world.recorder
    if recorder.is_host:
        return
    key = ("out", target.shape, target.stride(), target.dtype, source.shape, source.stride(), source.dtype)
    signature = _copy_signatures.get(key)
    if signature is None:
        spec = Signature("memcpy.device_to_host", (tensor_spec(target), tensor_spec(source)), (), "")
        signature = _copy_signatures[key] = recorder.writer.signature(spec)
    kernels.locate_backward(recorder)
    recorder.write_new_op(signature, source_sim.device_index, (source_sim.id,))


@rule("_to_copy")
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
            return view_of(
                source, source.shape, source.stride()
            )  # torch's C++ asks for a host tensor, which it already is
    shape = tuple(source.shape)
    memory_format = kwargs.get("memory_format")
    if memory_format in (None, torch.preserve_format):
        strides = preserved_strides(source)
    else:
        strides = strides_for(shape, memory_format)
    result = new_tensor(shape, strides, dtype, device)
    copy(aten.copy_.default, (result, source, bool(kwargs.get("non_blocking"))), {})
    return result


# -- streams and pinned memory ------------------------------------------------------------------------------


@rule("record_stream")
def _record_stream(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    sim = sim_of(args[0])
    if sim is not None and sim.device_index >= 0:
        world.recorder.plain_row(
            Kind.RECORD_STREAM, sim.id, stream=args[1].stream_id, device=sim.device_index
        )


@rule("is_pinned")
def _is_pinned(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    sim = sim_of(args[0])
    return sim is not None and sim.device == CPU


@rule("_pin_memory", "pin_memory")
def _pin_memory(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0]
