"""Values of simulated tensors, where they are small and known: indices, lengths, masks, constants.

    torch.arange(8, device="cuda").tolist() ──> the real numbers
    loss.item()                             ──> unknown: a default, which is reported

A small tensor whose inputs are all known is also computed on the host, integers and masks up to `INTEGER_LIMIT` at once
and larger ones when they are read (lazy_values.py); anything a device would compute from weights is unknown. Integers that
are copied from the host unchanged (token ids, sizes, pickled objects) keep their values whatever their size, up to
`KEPT_BYTES` in total; a notice says when that limit is reached.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.shape_inference import Entry, wrap_numbers
from windtunnel.capture.pytorch.tensors.storage import CPU, KNOWN_VALUE_LIMIT, SimStorage, sim_of, world
from windtunnel.units import format_bytes

__all__ = [
    "KEPT_BYTES",
    "Fill",
    "Implied",
    "all_false",
    "carry_values",
    "covers_storage",
    "discard_values",
    "follow_values",
    "is_floating",
    "make_known",
    "raw_bytes",
    "ready_values",
    "remember_values",
    "run_on_host",
    "values_of",
    "write_parts",
]

Tensor = torch.Tensor
INTEGER_LIMIT = 1 << 23  # bytes: of integers and masks that an operator computes, carried along
_LAZY_LIMIT = 1 << 26  # bytes: the same, computed when they are read
KEPT_BYTES = 1 << 30  # of this machine's memory, for the values of all tensors above KNOWN_VALUE_LIMIT
all_false: set[int] = set()  # storages known only to be all false: the results of isnan and isinf


class Implied:
    """Held in place of a storage's values: something from which they, or part of them, follow."""

    __slots__ = ()
    is_followed = True  # whether operators on it are followed by lazy_values.py

    def computed(self) -> Tensor | None:
        """The storage's bytes; None if they are unknown. Nobody may change them."""
        return None

    def nonzero(self, tensor: Tensor, known: Tensor) -> Tensor:
        """The nonzero elements of the known values of a tensor on this storage."""
        return known.nonzero()


class Fill(Implied):
    """A large storage that holds one number, into which a routing may be written; otherwise it counts as unknown."""

    __slots__ = ("value",)
    is_followed = False

    def __init__(self, value: Any) -> None:
        self.value = value


def values_of(tensor: Tensor) -> Tensor | None:
    """The tensor's real values on the CPU, if known (a real tensor's values always are). Only to be read."""
    sim = sim_of(tensor)
    if sim is None:
        return tensor
    values = sim.values.computed() if isinstance(sim.values, Implied) else sim.values
    return None if values is None else _on(values, tensor)


def ready_values(tensor: Tensor) -> Tensor | None:
    """The same, but nothing is computed for it: None if the values are lazy."""
    sim = sim_of(tensor)
    return None if sim is not None and isinstance(sim.values, Implied) else values_of(tensor)


def _on(values: Tensor, tensor: Tensor) -> Tensor:
    flat = values.view(tensor.dtype)
    return torch.as_strided(flat, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def remember_values(tensor: Tensor, real: Tensor) -> None:
    """Keep the values of a small simulated tensor that was just fully written."""
    sim = sim_of(tensor)
    if sim is None:
        return
    if real.device.type != "cpu":
        sim.values = None
        return
    if isinstance(sim.values, Implied):
        computed = None if covers_storage(tensor, sim) else sim.values.computed()
        sim.values = None if computed is None else computed.clone()
    if sim.values is None:
        if not covers_storage(tensor, sim):
            return  # only a part of the storage was written: the rest stays unknown
        if not _has_room(tensor.dtype, sim.n_bytes):
            return
        sim.values = _raw_empty(sim.n_bytes)
    _on(sim.values, tensor).copy_(real)


def carry_values(old: SimStorage, new: SimStorage, dtype: torch.dtype) -> None:
    """`resize_` to a larger storage: it begins with the old values."""
    values = old.values.computed() if isinstance(old.values, Implied) else old.values
    if values is not None and _has_room(dtype, new.n_bytes):
        new.values = _raw_empty(new.n_bytes)
        new.values[: old.n_bytes].copy_(values)


def is_floating(dtype: torch.dtype) -> bool:
    """Floating point or complex: data a device computes. Other types are counts, indices or pickled objects."""
    return dtype.is_floating_point or dtype.is_complex


def _has_room(dtype: torch.dtype, n_bytes: int) -> bool:
    """Whether known values are kept: small tensors always, large ones if they are integers and memory is left."""
    if n_bytes <= KNOWN_VALUE_LIMIT:
        return True
    if is_floating(dtype):
        return False
    if _kept_bytes + n_bytes <= KEPT_BYTES:
        return True
    world.recorder.notice(
        f"the values of integer tensors on the device are kept up to {format_bytes(KEPT_BYTES)} in total: those of"
        f" {format_bytes(n_bytes)} at {world.recorder.user_line()} were discarded; where they are read they count as"
        " unknown, and windtunnel.mock can set them"
    )
    return False


def covers_storage(tensor: Tensor, sim: SimStorage) -> bool:
    """Whether writing the tensor writes every byte of its storage."""
    return sim.n_bytes == tensor.numel() * tensor.element_size()


def make_known(a: Any) -> None:
    """A tensor is about to be overwritten: its old values no longer matter."""
    if isinstance(a, Tensor):
        sim = sim_of(a)
        if (
            sim is not None
            and (sim.values is None or isinstance(sim.values, Implied))
            and sim.n_bytes <= (KNOWN_VALUE_LIMIT if is_floating(a.dtype) else INTEGER_LIMIT)
            and covers_storage(a, sim)
        ):
            sim.values = _raw_empty(sim.n_bytes)
    elif isinstance(a, (list, tuple)):
        for each in a:
            make_known(each)


def write_parts(tensors: Sequence[Tensor], real: Tensor) -> None:
    """Write the same values to many tensors, which may be parts of one storage."""
    total: dict[int, int] = {}
    for tensor in tensors:
        sim = sim_of(tensor)
        if sim is not None:
            n_bytes = total[sim.id] = total.get(sim.id, 0) + tensor.numel() * tensor.element_size()
            is_unknown = sim.values is None or isinstance(sim.values, Implied)
            if is_unknown and n_bytes == sim.n_bytes and _has_room(tensor.dtype, n_bytes):
                sim.values = _raw_empty(sim.n_bytes)  # every byte of it is written below
    for tensor in tensors:
        remember_values(tensor, real)


_kept_bytes = 0  # by values above KNOWN_VALUE_LIMIT, now


def _raw_empty(n_bytes: int) -> Tensor:
    global _kept_bytes
    if not n_bytes:
        return _EMPTY_BYTES
    buffer = (ctypes.c_uint8 * n_bytes)()
    if n_bytes > KNOWN_VALUE_LIMIT:
        _kept_bytes += n_bytes
        weakref.finalize(buffer, _give_back, n_bytes).atexit = False
    return _frombuffer(buffer, dtype=torch.uint8)


def raw_bytes(n_bytes: int) -> Tensor:
    """Zeros in memory of this process, which no limit counts."""
    return _frombuffer((ctypes.c_uint8 * n_bytes)(), dtype=torch.uint8) if n_bytes else _EMPTY_BYTES


def _give_back(n_bytes: int) -> None:
    global _kept_bytes
    _kept_bytes -= n_bytes


_empty, _frombuffer = torch.empty, torch.frombuffer  # torch's own, before constructors are replaced
_EMPTY_BYTES = torch.empty(0, dtype=torch.uint8)


def follow_values(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Any], entry: Entry
) -> None:
    """The values of all inputs are known and small: compute the real results as well."""
    n_bytes, n_floating = 0, 0
    for spec in entry.outputs:
        if spec.__class__ is tuple and spec[0] == "new":
            n_bytes += spec[4]
            n_floating += spec[4] if is_floating(spec[3]) else 0
    if n_bytes > INTEGER_LIMIT or n_floating > KNOWN_VALUE_LIMIT:
        discard_values(results)  # what it wrote to is among them
        if not n_floating and n_bytes <= _LAZY_LIMIT and all(s[0] == "new" for s in entry.outputs):
            from windtunnel.capture.pytorch.kernels.lazy_nodes import derive  # late: few programs need it

            derive(op, args, kwargs, list(zip(results, entry.outputs, strict=True)), [])
        return
    try:
        real = run_on_host(
            op,
            [_to_real(a) for a in wrap_numbers(op, args)],
            {k: CPU if k == "device" else _to_real(a) for k, a in kwargs.items()},
        )
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        for r in results:
            discard_values(r)
        return
    for sim_result, real_result in zip(results, real if entry.out_is_list else [real], strict=False):
        if isinstance(sim_result, Tensor) and isinstance(real_result, Tensor):
            # host kernels may return other helper tensors than device kernels
            remember_values(
                sim_result, real_result
            ) if sim_result.shape == real_result.shape else discard_values(sim_result)


def run_on_host(op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """An operator on real values, also where only an accelerator has a kernel for their type."""
    other = _OTHERWISE_ON_HOST.get(op._schema.name)
    return op(*args, **kwargs) if other is None else other(op, args, kwargs)


def _histogram(op: Any, args: list[Any], kwargs: dict[str, Any]) -> Tensor:
    source = args[0]
    if is_floating(source.dtype):
        return op(*args, **kwargs)
    return op(source.double(), *args[1:], **kwargs).to(source.dtype)


_OTHERWISE_ON_HOST: dict[str, Callable[[Any, list[Any], dict[str, Any]], Any]] = {"aten::histc": _histogram}


def _to_real(a: Any) -> Any:
    if isinstance(a, Tensor):
        known = values_of(a)
        return known if known is not None else _empty(0, dtype=a.dtype)  # an out= that was just resized
    if isinstance(a, (list, tuple)):
        return [_to_real(each) for each in a]
    return a


def discard_values(a: Any) -> None:
    if isinstance(a, Tensor):
        sim = sim_of(a)
        if sim is not None:
            sim.values = None
            if all_false:
                all_false.discard(sim.id)
    elif isinstance(a, (list, tuple)):
        for each in a:
            discard_values(each)
