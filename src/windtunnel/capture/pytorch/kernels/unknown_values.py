"""Operators whose result depends on values a simulated device does not have.

    x.item(), x[mask], x.nonzero(), x.unique() ──> known values, or documented defaults that are reported

The defaults (docs/unknown-values.md): 1 for numbers, True for truth, and for shapes that depend on values the largest
possible result ("every element is selected, every value is distinct").
"""

from __future__ import annotations

import math
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels import kernels
from windtunnel.capture.pytorch.kernels.known_values import Implied, all_false, remember_values, values_of
from windtunnel.capture.pytorch.kernels.routers import count_lazily, decide_ids
from windtunnel.capture.pytorch.kernels.shape_inference import tensor_spec
from windtunnel.capture.pytorch.kernels.views_and_copies import copy, rule, special, target_device
from windtunnel.capture.pytorch.tensors.storage import CPU, new_tensor, sim_of, view_of, world
from windtunnel.capture.pytorch.tensors.strides import contiguous_strides, preserved_strides
from windtunnel.events.model import Signature

__all__ = ["accepting", "default_value", "special", "unknown_value"]

Tensor = torch.Tensor
aten = torch.ops.aten


@rule("_local_scalar_dense")
def _item(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _wait_for(args[0])
    known = values_of(args[0])
    if known is not None:
        return known.item()
    if accepting.depth:
        return type(default_value(args[0].dtype))(0)
    return world.recorder.read_unknown(_what_was_read(), unknown_value(args[0]))


class accepting:
    """Active while torch draws random samples again until none is rejected: here none is."""

    depth = 0

    def __enter__(self) -> None:
        accepting.depth += 1

    def __exit__(self, *_: object) -> None:
        accepting.depth -= 1


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


@rule("equal")
def _equal(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    a, b = args
    if a.shape != b.shape:
        return False
    _run_on_device(op, args)
    _wait_for(a)
    known_a, known_b = values_of(a), values_of(b)
    if known_a is not None and known_b is not None:
        return torch.equal(known_a, known_b)
    world.recorder.note_unknown("torch.equal of device tensors", True)
    return True


@rule("nonzero")
def _nonzero(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    source = args[0]
    _run_on_device(op, args)
    _wait_for(source)  # for the number of rows
    known = values_of(source)
    if known is not None:
        sim = sim_of(source)
        held = None if sim is None else sim.values
        found = held.nonzero(source, known) if isinstance(held, Implied) else torch.nonzero(known)
        rows = found.shape[0]
    else:
        found, rows = None, source.numel()
        world.recorder.note_unknown("how many elements are nonzero (nonzero, boolean mask)", rows)
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


@rule("masked_select")
def _masked_select(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    source, mask = args
    _run_on_device(op, args)
    _wait_for(source)
    shape = torch.broadcast_shapes(source.shape, mask.shape)
    known = values_of(mask)
    n = int(known.expand(shape).sum()) if known is not None else math.prod(shape)
    if known is None:
        world.recorder.note_unknown("how many elements a mask selects", n)
    result = _like(source, (n,), (1,), source.dtype)
    data = values_of(source) if known is not None else None
    if known is not None and data is not None:
        remember_values(result, torch.masked_select(data, known))
    return result


@rule("index.Tensor")
def _index(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return kernels.run_generic(op, (args[0], _masks_to_indices(args[0], args[1])), kwargs)


@rule("index_put_", "_index_put_impl_", "_unsafe_index_put", "index_put")
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
    """`x[mask] = 2`: one mask over the whole tensor and one host number, which torch's own kernel fills."""
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
    return copy(aten.copy_.default, (moved, tensor), {})


@rule("_unique2", "unique_dim", "unique_consecutive")
def _unique(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    source = args[0]
    _run_on_device(op, args)
    _wait_for(source)
    named = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
    known = values_of(source)
    if known is not None:
        real = op(known, *args[1:], **kwargs)
        return tuple(_copied(r, source) for r in real)  # type: ignore[return-value]
    n = source.numel() if named.get("dim") is None else source.shape[named["dim"]]
    world.recorder.note_unknown("how many distinct values there are (unique)", n)
    shape = (n,) if named.get("dim") is None else tuple(source.shape)
    inverse = tuple(source.shape) if named.get("return_inverse") else (0,)
    counts = (n,) if named.get("return_counts") else (0,)
    return (
        _like(source, shape, contiguous_strides(shape), source.dtype),
        _like(source, inverse, contiguous_strides(inverse), torch.int64),
        _like(source, counts, contiguous_strides(counts), torch.int64),
    )


@rule("bincount")
def _bincount(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    source = args[0]
    _run_on_device(op, args)
    _wait_for(source)
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    minlength = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    dtype = torch.float64 if weights is not None else torch.int64
    if minlength and decide_ids(source, minlength):
        result = _like(source, (minlength,), (1,), dtype)
        count_lazily(op, args, kwargs, result)
        return result
    known = values_of(source)
    if known is not None and known.numel():
        n = max(int(known.max()) + 1, minlength)
    else:
        n = max(minlength, 1)
        world.recorder.note_unknown("the largest value (bincount)", n - 1)
    result = _like(source, (n,), (1,), dtype)
    if known is not None and (weights is None or values_of(weights) is not None):
        remember_values(result, torch.bincount(known, None if weights is None else values_of(weights), n))
    return result


@rule("repeat_interleave.Tensor")
def _repeat_interleave(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    repeats = args[0]
    _run_on_device(op, args)
    n = args[1] if len(args) > 1 else kwargs.get("output_size")
    known = values_of(repeats)
    if n is None:
        _wait_for(repeats)
    if n is None and known is not None:
        n = int(known.sum())
    if n is None:
        n = repeats.numel()
        world.recorder.note_unknown("how often to repeat (repeat_interleave)", 1)
    result = _like(repeats, (n,), (1,), repeats.dtype)
    if known is not None:
        remember_values(result, torch.repeat_interleave(known))
    return result


@rule("_assert_async", "_assert_async.msg")
def _assert_async(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    return None


@rule("_is_all_true")
def _is_all_true(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """torch.distributions check their arguments with it: unknown values pass, whatever a comparison made of them."""
    return kernels.run_generic(op, args, kwargs)


@rule("_amp_foreach_non_finite_check_and_unscale_")
def _unscale(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # A simulated gradient is assumed to be finite: GradScaler then steps, as it does in nearly every real step.
    found_inf = args[1]
    _run_on_device(op, args)
    remember_values(found_inf, torch.zeros(found_inf.shape, dtype=found_inf.dtype))


@rule("_amp_update_scale_")
def _update_scale(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0]


def _wait_for(tensor: Tensor) -> None:
    sim = sim_of(tensor)
    world.recorder.read_value(sim.device_index if sim is not None else -1)


_signatures: dict[Any, int] = {}


def _run_on_device(op: Any, args: tuple[Any, ...]) -> None:
    """Write the row of an operator whose handler allocates its results itself."""
    given = [t for a in args for t in (a if isinstance(a, (list, tuple)) else (a,)) if isinstance(t, Tensor)]
    storages = [sim for sim in map(sim_of, given) if sim is not None and sim.device_index >= 0]
    if not storages:
        return
    recorder = world.recorder
    key = (op, *((t.shape, t.stride(), t.dtype) for t in given))
    signature = _signatures.get(key)
    if signature is None:
        specs = tuple(map(tensor_spec, given))
        described = Signature(str(op), specs, (), "")
        signature = _signatures[key] = recorder.writer.signature(described)
    kernels.locate_backward(recorder)
    recorder.write_new_op(signature, storages[0].device_index, tuple(sim.id for sim in storages))


def _like(source: Tensor, shape: Any, strides: Any, dtype: torch.dtype) -> Tensor:
    sim = sim_of(source)
    return new_tensor(tuple(shape), tuple(strides), dtype, sim.device if sim else target_device())


def _copied(real: Tensor, source: Tensor) -> Tensor:
    made = _like(source, real.shape, contiguous_strides(real.shape), real.dtype)
    remember_values(made, real)
    return made
