"""Simulated tensors: real `torch.Tensor` objects of torch's PrivateUse1 backend whose storage has a size, an
identity and a device, but no bytes.

    new_tensor(shape, strides, dtype, device) ──> Tensor; sim_of(tensor) ──> SimStorage
    the storage is freed (refcounts, autograd, hooks: torch's own rules) ──> FREE row

Because they are plain tensors (not a subclass, not meta), type checks, parameters, autograd, autocast keys and
foreach lists behave as on a real device, in every thread, with no mode active. A view shares its base's storage,
so a view keeps memory alive here exactly when it does on the device.
"""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import torch

from windtunnel.capture.pytorch.tensors.templates import TensorTemplate, storage_id
from windtunnel.capture.recorder import Recorder
from windtunnel.capture.routing import Routing
from windtunnel.events.model import Role

__all__ = [
    "CPU",
    "KNOWN_VALUE_LIMIT",
    "NO_DEVICE",
    "PINNED",
    "SimStorage",
    "World",
    "attach",
    "install_backend",
    "new_storage",
    "new_tensor",
    "set_storage",
    "sim_of",
    "span_bytes",
    "view_of",
    "world",
]

BACKEND = "simulated"
PINNED = "_windtunnel_pinned"  # attribute of a host storage that the program pinned
CPU = torch.device("cpu")
WORKSPACE = int(Role.WORKSPACE)
KNOWN_VALUE_LIMIT = 1 << 18  # bytes: values of small tensors are carried along while every input is known
SIM: torch.device  # set by install_backend: the PrivateUse1 device every simulated tensor has inside torch

_CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
# torch's own kernels for CPU tensors only move pointers and sizes here, so they serve any backend.
_set_storage = torch.library.get_kernel("aten::set_.source_Storage_storage_offset", "CPU").call_boxed
_as_strided = torch.library.get_kernel("aten::as_strided", "CPU").call_boxed
_empty = torch._C._acc.create_empty_tensor


class SimStorage:
    """A simulated storage, identified by the address of torch's own storage object."""

    __slots__ = ("device", "device_index", "id", "key", "n_bytes", "role", "values")

    def __init__(self, id: int, n_bytes: int, device: torch.device, index: int) -> None:
        self.id = id
        self.n_bytes = n_bytes
        self.device = device  # what the user's program sees, e.g. cuda:0
        self.device_index = index  # row's device column; NO_DEVICE for host memory that is not accounted
        self.key = 0
        self.role = 0
        self.values: Any = None  # the bytes, when they are few and known; or what they follow from (Implied)


class _StorageOwner:
    """Held only by torch's storage: it is deleted when the storage is freed."""

    __slots__ = ("sim",)

    def __init__(self, sim: SimStorage) -> None:
        self.sim = sim

    def __del__(self) -> None:
        sim = self.sim
        del sims[sim.key]
        if sim.device_index >= 0:
            world.recorder.write_free(sim.id, sim.device_index)


sims: dict[int, SimStorage] = {}  # by storage_id
_templates: dict[Any, TensorTemplate] = {}


def sim_of(tensor: torch.Tensor) -> SimStorage | None:
    """The simulated storage under a tensor, or None for a real one."""
    try:
        return sims.get(storage_id(tensor))
    except (RuntimeError, NotImplementedError):
        return None  # sparse and other tensors without a storage


class World(threading.local):
    """The simulated machine of this process, and what this thread is doing with it.

    A subclass of `threading.local` so that `target` is each thread's own; the class attributes are shared.
    """

    recorder: Recorder
    device_type: str = "cuda"  # what the program calls the accelerator; "cpu" when the CPU is the device
    index_of_device: ClassVar[
        dict[torch.device, int]
    ] = {}  # devices whose memory is accounted -> row's device column
    default_device: torch.device
    routing: Routing = Routing()  # which experts tokens go to
    aliases: frozenset[str] = frozenset()  # other names of the device: "cuda" after importing transfer_to_npu
    target: torch.device | None = None  # while a patched call is inside torch: the device the user named
    is_worker: bool = False  # this process was forked by the program: nothing it does is recorded
    op: int = -1  # id of the operator now running, for ALLOC rows


world = World()
NO_DEVICE = -1


def install_backend(recorder: Recorder, device_type: str, n_devices: int) -> None:
    """Register the PrivateUse1 backend and name the devices the program will see."""
    global SIM
    from torch.utils import backend_registration

    name = device_type if device_type == "npu" else BACKEND
    module = backend_registration._DummyBackendModule()
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16, torch.float32]  # type: ignore[attr-defined]
    backend_registration._setup_privateuseone_for_python_backend(name, backend_module=module)
    SIM = torch.device(name, 0)
    World.recorder = recorder
    World.device_type = device_type
    if device_type == "cpu":
        World.index_of_device = {CPU: 0}
        World.default_device = CPU
    else:
        World.index_of_device = {torch.device(device_type, i): i for i in range(n_devices)}
        World.default_device = torch.device(device_type, 0)


def new_tensor(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    n_bytes: int | None = None,
    role: int = 0,
) -> torch.Tensor:
    """A simulated tensor with a fresh storage; writes its ALLOC row."""
    key = (shape, strides, dtype, n_bytes)  # bytes too: a kernel may return a small view of a larger storage
    template = _templates.get(key)
    if template is None:
        size = span_bytes(shape, strides, dtype.itemsize) if n_bytes is None else n_bytes
        template = _templates[key] = TensorTemplate(shape, strides, dtype, size)
    recorder = world.recorder
    id = recorder.n_storages = recorder.n_storages + 1
    n_bytes = template.n_bytes
    index = (
        world.index_of_device.get(device, NO_DEVICE) if n_bytes else NO_DEVICE
    )  # allocators see no empty requests
    sim = SimStorage(id, n_bytes, device, index)
    tensor = template.instantiate(_StorageOwner(sim))
    sim.key = key = storage_id(tensor)
    sims[key] = sim
    if index >= 0:
        recorder.write_alloc(id, n_bytes, world.op, role, index)
    return tensor


def new_storage(n_bytes: int, device: torch.device, role: int = 0) -> torch.UntypedStorage:
    """A bare simulated storage of `n_bytes`."""
    return new_tensor((n_bytes,), (1,), torch.uint8, device, n_bytes, role).untyped_storage()


def attach(
    storage: torch.UntypedStorage, offset: int | torch.SymInt, shape: Any, strides: Any, dtype: torch.dtype
) -> torch.Tensor:
    """A simulated tensor over an existing simulated storage."""
    return _set_storage(_CPU_KEYS, _empty((0,), dtype), storage, offset, shape, strides)


def set_storage(
    tensor: torch.Tensor, storage: torch.UntypedStorage, offset: int, shape: Any, strides: Any
) -> torch.Tensor:
    """Point a simulated tensor at another storage, in place."""
    return _set_storage(_CPU_KEYS, tensor, storage, offset, shape, strides)


def resize(sim: SimStorage, n_bytes: int) -> None:
    """`storage.resize_()`: free and allocate under the same object, as sharded training does for each layer."""
    recorder = world.recorder
    if sim.device_index >= 0 and sim.n_bytes:
        recorder.write_free(sim.id, sim.device_index)
    sim.n_bytes = n_bytes
    sim.values = None
    if n_bytes:
        sim.device_index = world.index_of_device.get(sim.device, NO_DEVICE)
        sim.id = recorder.n_storages = recorder.n_storages + 1
        if sim.device_index >= 0:
            recorder.write_alloc(sim.id, n_bytes, world.op, sim.role, sim.device_index)
    else:
        sim.device_index = NO_DEVICE


def view_of(tensor: torch.Tensor, shape: Any, strides: Any, offset: int | None = None) -> torch.Tensor:
    return _as_strided(_CPU_KEYS, tensor, shape, strides, offset)


def span_bytes(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    """Bytes from the first to the last element: what torch allocates for such a tensor."""
    last = 0
    for size, stride in zip(shape, strides, strict=True):
        if size == 0:
            return 0
        last += (size - 1) * stride
    return (last + 1) * itemsize
