"""Real host tensors that enter a program whose device is the CPU: what it computes from them must be recorded too.

    numpy, buffers, torch.load, legacy constructors ──> adopt ──> a simulated tensor over the same bytes
    operators inside a DataLoader                   ──> run for real, their results counted; each batch is adopted

An operator whose arguments are all real would run unseen: adopting every real tensor where it enters is what makes the
memory of such a program right. Bytes that torch's allocator gave are counted, bytes of numpy or a file are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
)
from torch.utils._pytree import tree_map_only

from windtunnel.capture.pytorch.kernels.device_argument import plain_device, simulate
from windtunnel.capture.pytorch.kernels.known_values import values_of
from windtunnel.capture.pytorch.tensors.storage import CPU, attach, new_tensor, sim_of, world

__all__ = ["account", "adopt", "install_cpu_data", "is_adopting"]

Tensor = torch.Tensor
_empty = torch.empty  # torch's own, before constructors are replaced
_NOT_TORCH = torch.device("cpu", 0)  # not the device that is accounted
_RECEIVED = (
    torch.ops.aten.set_.source_Storage_storage_offset
)  # how a tensor arrives from a worker, in shared memory


def install_cpu_data() -> None:
    """Adopt what enters through these doors; torch.load and constructors have doors of their own."""
    _install_random_state()
    _install_data_loader()
    for module, name in ((torch, "from_numpy"), (torch, "frombuffer"), (torch, "from_dlpack"),
                         (torch.utils.dlpack, "from_dlpack")):  # fmt: skip
        setattr(module, name, _adopting(getattr(module, name)))


def is_adopting() -> bool:
    """Whether real tensors are adopted now: not in a worker, and not where a data pipeline runs for real."""
    return world.device_type == "cpu" and not world.is_worker and _get_current_dispatch_mode() is None


def account(made: Tensor) -> None:
    """Count the bytes of a real tensor for as long as torch keeps its storage."""
    if not _is_plain(made):
        return
    storage = made.untyped_storage()
    n_bytes = storage.nbytes()
    if n_bytes and not hasattr(storage, "_windtunnel_accounted"):
        twin = new_tensor((n_bytes,), (1,), torch.uint8, CPU, n_bytes)
        storage._windtunnel_accounted = _Accounted(twin)  # type: ignore[attr-defined]


def adopt(real: Tensor) -> Tensor:
    """A simulated tensor over the memory of a real one: what the program computes from it is recorded."""
    if not _is_plain(real) or type(real) is not Tensor or real.requires_grad:
        return real
    if world.is_worker or not real.numel():
        return real
    storage = real.untyped_storage()
    accounted = getattr(storage, "_windtunnel_accounted", None)
    n_bytes = storage.nbytes()
    if accounted is not None:
        twin = accounted.twin
        del storage._windtunnel_accounted  # type: ignore[attr-defined]  # it now lives as long as the simulated storage
    else:  # numpy's memory, which torch did not allocate
        twin = new_tensor((n_bytes,), (1,), torch.uint8, _NOT_TORCH, n_bytes)
    sim = sim_of(twin)
    if sim is None:
        return real
    sim.device = CPU
    with _disable_current_modes():
        sim.values = _empty((0,), dtype=torch.uint8).set_(storage, 0, (n_bytes,), (1,))
    return attach(twin.untyped_storage(), real.storage_offset(), real.shape, real.stride(), real.dtype)


def _is_plain(tensor: Tensor) -> bool:
    return sim_of(tensor) is None and plain_device(tensor).type == "cpu" and tensor.layout is torch.strided


class _Accounted:
    """An attribute of a real storage: its bytes are counted for as long as torch keeps the storage."""

    __slots__ = ("twin",)

    def __init__(self, twin: Tensor) -> None:
        self.twin = twin


def _adopting(read: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: adopt(read(*args, **kwargs))


class _RealOperators(TorchDispatchMode):
    """Operators of a data pipeline run for real; their results count as CPU memory like any other.

    Active inside a DataLoader only: while any mode is active, autograd accumulates gradients out of place.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        if any(r.alias_info is None for r in returns) or func is _RECEIVED:
            for made in result if isinstance(result, (list, tuple)) else (result,):
                if isinstance(made, Tensor):
                    account(made)
        return result


def _install_data_loader() -> None:
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    original = iterator.__next__

    def __next__(self: Any) -> Any:
        with _RealOperators():
            batch = original(self)
        return tree_map_only(Tensor, adopt, batch)

    iterator.__next__ = __next__  # type: ignore[method-assign]
    # Imported from torch by name before constructors are replaced.
    torch.utils.data.dataset.randperm = lambda *args, **kwargs: torch.randperm(*args, **kwargs)


def _install_random_state() -> None:
    """The generator's state is a tensor of 5 KB, which checkpointing keeps: account for it like any other."""
    read, write = torch.random.get_rng_state, torch.random.set_rng_state

    def get_rng_state() -> Tensor:
        return simulate(read())

    def set_rng_state(new_state: Tensor) -> None:
        known = values_of(new_state)
        if known is not None:
            write(known)

    for module in (torch, torch.random):
        module.get_rng_state, module.set_rng_state = get_rng_state, set_rng_state  # type: ignore[attr-defined]
