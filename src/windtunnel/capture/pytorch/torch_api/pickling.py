"""Pickle simulated tensors: their description, and their values if they are small and known.

    pickle, torch.save, a queue to another process ──> shape, strides, dtype, device ──> the same, with no values

A program outside a dry run cannot load such a pickle: a description must never be mistaken for weights.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.cpu_data import account, adopt, is_adopting
from windtunnel.capture.pytorch.kernels.device_argument import resolve_device
from windtunnel.capture.pytorch.kernels.known_values import values_of
from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.tensors.storage import CPU, attach, new_storage, sim_of, world
from windtunnel.isolation.true_size import SIMULATED_STORAGE

__all__ = [
    "describing_views",
    "find_simulated",
    "install_pickling",
    "loading_onto",
    "rebuild_simulated",
    "storage_name",
]

Tensor = torch.Tensor
_NOT_A_DRY_RUN = "this tensor was written by a dry run: it has a shape but no values"
_empty, _zeros = torch.empty, torch.zeros  # torch's own, before constructors are replaced


def install_pickling() -> None:
    """Let every pickler handle simulated tensors."""
    Tensor.__reduce_ex__ = _reduce(Tensor.__reduce_ex__)  # type: ignore[method-assign]
    parameter = torch.nn.Parameter
    parameter.__reduce_ex__ = _reduce(parameter.__reduce_ex__)  # type: ignore[method-assign]
    torch.serialization.add_safe_globals([rebuild_simulated])
    torch._utils._rebuild_tensor = _rebuild_tensor
    for kind in (Tensor, parameter):
        reduce = ForkingPickler._extra_reducers.get(kind)  # type: ignore[attr-defined]
        if reduce is not None:
            ForkingPickler.register(kind, _reduce_between_processes(reduce))


def _rebuild_tensor(storage: Any, offset: int, shape: Any, strides: Any) -> Tensor:
    """Torch's own, with torch's own `empty`: bytes that were read are a real tensor on the host."""
    if storage._untyped_storage._cdata in store.sims:
        return attach(storage._untyped_storage, offset, shape, strides, storage.dtype)
    real, loading = storage._untyped_storage, loading_onto.current
    if loading is not None and real.nbytes() and real.device == CPU and is_adopting():
        return attach(loading.adopted(real), offset, shape, strides, storage.dtype)
    made = _empty((0,), dtype=storage.dtype, device=storage._untyped_storage.device)
    return made.set_(storage._untyped_storage, offset, shape, strides)


def _reduce(original: Any) -> Any:
    def __reduce_ex__(self: Tensor, protocol: Any) -> Any:
        return original(self, protocol) if sim_of(self) is None else _description(self)

    return __reduce_ex__


def _reduce_between_processes(original: Any) -> Any:
    return lambda tensor: original(tensor) if sim_of(tensor) is None else _description(tensor)


def _description(tensor: Tensor) -> tuple[Any, ...]:
    sim = sim_of(tensor)
    assert sim is not None
    known = values_of(tensor)
    layout = (
        sim.id,
        sim.n_bytes,
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
    )
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    values = known.detach().clone() if known is not None else None
    return rebuild_simulated, (
        layout,
        str(sim.device),
        tensor.requires_grad,
        is_parameter,
        values,
        os.getpid(),
        storage_name(tensor, values),
    )


def storage_name(tensor: Tensor, values: Tensor | None = None) -> str:
    """A text with the size that a simulated tensor would add to a real file, without the values it already has.

    That is the size of its storage, once for all its views, or in some formats that of the view.
    """
    sim = sim_of(tensor)
    assert sim is not None
    number, n_bytes = f"{os.getpid()}.{sim.id}", sim.n_bytes
    if describing_views.is_on:
        number += f".{tensor.storage_offset()}.{tensor.numel()}"
        n_bytes = tensor.numel() * tensor.element_size()
    n_known = 0 if values is None else values.numel() * values.element_size()
    return SIMULATED_STORAGE.format(number=number, n_bytes=max(0, n_bytes - n_known))


class describing_views:
    """Active while describing a format that writes each tensor separately, not its storage."""

    is_on = False

    def __enter__(self) -> None:
        describing_views.is_on = True

    def __exit__(self, *_: object) -> None:
        describing_views.is_on = False


# -- reading --------------------------------------------------------------------------------------------------


class loading_onto:
    """Active while a pickle is read: tensors go to this device, and tensors of one storage share it again."""

    current: loading_onto | None = None

    def __init__(self, device: Any, is_mapped: bool = False) -> None:
        self.device = device  # None: where they were
        self.is_mapped = is_mapped  # torch.load(mmap=True): the bytes stay in the file
        self.storages: dict[tuple[int, int], torch.UntypedStorage] = {}
        self.twins: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __enter__(self) -> None:
        self.before, loading_onto.current = loading_onto.current, self

    def __exit__(self, *_: object) -> None:
        loading_onto.current = self.before

    def adopted(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The simulated storage over the bytes of a file, where the CPU is the device."""
        if storage._cdata not in self.twins:
            whole = _empty((0,), dtype=torch.uint8).set_(storage)
            if not self.is_mapped:
                account(whole)
            self.twins[storage._cdata] = storage, adopt(whole).untyped_storage()
        return self.twins[storage._cdata][1]


def rebuild_simulated(
    layout: tuple[Any, ...],
    device: str,
    requires_grad: bool,
    is_parameter: bool,
    values: Tensor | None,
    process: int,
    name: str = "",  # for readers of the file without torch: how large a real one would be
) -> Tensor:
    """The tensor of a description."""
    id, n_bytes, offset, shape, strides, dtype = layout
    if not hasattr(store, "SIM"):
        made = _in_another_process(shape, dtype, device, values)
    elif world.device_type == device and process != os.getpid() and loading_onto.current is None:
        made = _in_another_process(
            shape, dtype, device, values
        )  # a loader's batch: shared memory, which torch does not account for
    else:
        loading = loading_onto.current or loading_onto(None)
        where = resolve_device(device if loading.device is None else loading.device)
        storage = loading.storages.get((process, id))
        if storage is None:
            storage = loading.storages[(process, id)] = new_storage(n_bytes, where)
        made = attach(storage, offset, shape, strides, dtype)
        if values is not None:
            made.copy_(values)
    return torch.nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)


def _in_another_process(shape: Any, dtype: torch.dtype, device: str, values: Tensor | None) -> Tensor:
    """In a worker without a simulated device: host tensors become real zeros, which cost nothing until touched."""
    if os.environ.get("WINDTUNNEL_DRY_RUN") != "1" or device != str(CPU):
        raise RuntimeError(_NOT_A_DRY_RUN)
    return values if values is not None else _zeros(shape, dtype=dtype)


# -- finding --------------------------------------------------------------------------------------------------


def find_simulated(obj: Any) -> list[Tensor]:
    """Simulated tensors anywhere inside an object, as a pickler would meet them."""
    finder = _Finder(_DiscardingFile())
    with contextlib.suppress(Exception):  # an object that cannot be pickled raises when the program saves it
        finder.dump(obj)
    return finder.found


class _DiscardingFile:
    def write(self, data: Any) -> int:
        return len(data)


class _Finder(pickle.Pickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=2)
        self.found: list[Tensor] = []

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            if sim_of(obj) is not None:
                self.found.append(obj)
            return "tensor"
        return "storage" if isinstance(obj, (torch.UntypedStorage, torch.TypedStorage)) else None
