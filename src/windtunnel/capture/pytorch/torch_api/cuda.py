"""`torch.cuda` and `torch.npu` for a simulated device.

torch.cuda.get_device_properties(0) ──> the device profile
torch.cuda.max_memory_allocated()   ──> the allocator model, fed with the events of this run
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from windtunnel.capture.memory_counters_protocol import MemoryCounters
from windtunnel.capture.pytorch.kernels.device_argument import resolve_device
from windtunnel.capture.pytorch.tensors.storage import World, sims, world
from windtunnel.capture.pytorch.torch_api import streams
from windtunnel.capture.pytorch.torch_api.cuda_build import install_cuda_build
from windtunnel.capture.pytorch.torch_api.data_parallel import install_data_parallel
from windtunnel.capture.pytorch.torch_api.legacy_types import legacy_types
from windtunnel.capture.pytorch.torch_api.npu import complete_npu_module, npu_module
from windtunnel.devices import DeviceProfile
from windtunnel.events.model import Kind

__all__ = ["install_device_module"]


# Of one block, at most, by compute capability (CUDA's programming guide).
_SHARED_KIB = {
    (7, 0): 96,
    (7, 5): 64,
    (8, 0): 163,
    (8, 6): 99,
    (8, 9): 99,
    (9, 0): 227,
    (10, 0): 227,
    (12, 0): 99,
}


class _Properties:
    """`torch.cuda.get_device_properties()`."""

    def __init__(self, profile: DeviceProfile) -> None:
        self.name = profile.name
        self.major, self.minor = profile.capability
        self.total_memory = profile.memory_bytes
        self.multi_processor_count = profile.multiprocessors
        self.is_integrated = self.is_multi_gpu_board = False
        self.max_threads_per_multi_processor = 2048
        self.warp_size = 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 49152
        self.shared_memory_per_block_optin = _SHARED_KIB.get(profile.capability, 163) << 10
        self.shared_memory_per_multiprocessor = self.shared_memory_per_block_optin + 1024
        self.L2_cache_size = 41943040
        self.gcnArchName = ""
        self.uuid = "simulated"

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', total_memory={self.total_memory >> 20}MB, simulated)"
        )


def install_device_module(profile: DeviceProfile, n_devices: int, counters: MemoryCounters) -> None:
    """Make torch.cuda (or torch.npu) answer for the simulated device."""
    if profile.kind == "cpu":
        return
    module = torch.cuda if profile.kind == "cuda" else npu_module()
    for name, value in _surface(profile, n_devices, counters).items():
        setattr(module, name, value)
    torch.Tensor.record_stream = streams.record_stream  # type: ignore[assignment]
    torch.Stream = streams.Stream  # type: ignore[misc, assignment]
    torch.Event = streams.Event  # type: ignore[misc, assignment]
    _install_accelerator(profile, n_devices, module)
    if profile.kind == "cuda":
        _install_cuda_only(profile)
    else:
        complete_npu_module(module)


def _surface(profile: DeviceProfile, n_devices: int, counters: MemoryCounters) -> dict[str, Any]:
    properties = _Properties(profile)
    return {
        **_identity(profile, n_devices, properties),
        **_memory(profile, counters),
        **_random(n_devices),
        "Stream": streams.Stream,
        "ExternalStream": streams.ExternalStream,
        "Event": streams.Event,
        "StreamContext": streams.StreamContext,
        "stream": streams.StreamContext,
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "set_stream": streams.set_stream,
        "synchronize": _initialising(streams.synchronize),
    }


def _identity(profile: DeviceProfile, n_devices: int, properties: _Properties) -> dict[str, Any]:
    return {
        "is_available": lambda: True,
        "is_initialized": _is_initialised,
        "init": _initialise,
        "_lazy_init": _initialise,
        "_lazy_call": lambda callable, **_: callable(),
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: n_devices,
        "current_device": _initialising(lambda: world.default_device.index or 0),
        "set_device": _set_device,
        "device": _DeviceGuard,
        "device_of": lambda tensor: _DeviceGuard(tensor.get_device()),
        "_DeviceGuard": _DeviceGuard,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _exchange_device,
        "get_device_name": _initialising(lambda device=None: profile.name),
        "get_device_capability": _initialising(lambda device=None: profile.capability),
        "get_device_properties": _initialising(lambda device=None: properties),
        "is_bf16_supported": lambda including_emulation=True: (
            profile.kind == "npu" or profile.capability >= (8, 0)
        ),
        "get_arch_list": lambda: [f"sm_{profile.capability[0]}{profile.capability[1]}"],
        "is_current_stream_capturing": lambda: False,
        "can_device_access_peer": lambda a, b: True,
        "utilization": lambda device=None: 0,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
    }


class _Device:
    is_initialised = False  # by the program: set_device and the first use do, a model on the host does not


def _is_initialised() -> bool:
    """DeviceMesh sets the device from LOCAL_RANK only if the program has not initialised one."""
    if not _Device.is_initialised:
        is_used = any(row[0] == Kind.ALLOC for row in world.recorder.rows)
        _Device.is_initialised = is_used or any(sim.device_index >= 0 for sim in sims.values())
    return _Device.is_initialised


def _initialise() -> None:
    _Device.is_initialised = True


def _initialising(answer: Callable[..., Any]) -> Callable[..., Any]:
    """A function that initialises the device first, as torch's does."""

    @functools.wraps(answer)
    def call(*args: Any, **kwargs: Any) -> Any:
        _Device.is_initialised = True
        return answer(*args, **kwargs)

    return call


def _set_device(device: Any) -> None:
    if device is None:
        return
    _initialise()
    index = device if isinstance(device, int) else resolve_device(device).index
    if index is not None and index >= 0:
        wanted = torch.device(world.device_type, index)
        if wanted not in world.index_of_device:
            raise RuntimeError(
                f"invalid device ordinal: {wanted}, but there are {len(world.index_of_device)} devices"
            )
        World.default_device = wanted


def _exchange_device(index: int) -> int:
    before = world.default_device.index or 0
    _set_device(index)
    return before


class _DeviceGuard:
    """`with torch.cuda.device(1):`"""

    def __init__(self, device: Any) -> None:
        self.idx = (
            device if isinstance(device, int) else (-1 if device is None else resolve_device(device).index)
        )
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *_: object) -> Literal[False]:
        _set_device(self.prev_idx)
        return False


# -- memory -------------------------------------------------------------------------------------------------


def _memory(profile: DeviceProfile, counters: MemoryCounters) -> dict[str, Any]:
    def read(key: str) -> Callable[..., int]:
        return lambda device=None: counters.read(_index(device))[key]

    def stats(device: Any = None) -> dict[str, int]:
        now = counters.read(_index(device))
        found: dict[str, int] = {}
        for kind, current, peak in (
            ("allocated_bytes", "allocated", "peak_allocated"),
            ("active_bytes", "allocated", "peak_allocated"),
            ("requested_bytes", "allocated", "peak_allocated"),
            ("reserved_bytes", "reserved", "peak_reserved"),
        ):
            for pool in ("all", "large_pool", "small_pool"):
                found[f"{kind}.{pool}.current"] = now[current]
                found[f"{kind}.{pool}.peak"] = now[peak]
        return found | {"num_alloc_retries": 0, "num_ooms": 0, "inactive_split_bytes.all.current": 0}

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        return max(profile.usable_bytes - counters.read(_index(device))["reserved"], 0), profile.memory_bytes

    def empty_cache() -> None:
        world.recorder.plain_row(Kind.EMPTY_CACHE, device=world.default_device.index or 0)

    reset = lambda device=None: counters.reset_peak(_index(device))
    return {
        "memory_allocated": read("allocated"),
        "max_memory_allocated": read("peak_allocated"),
        "memory_reserved": read("reserved"),
        "max_memory_reserved": read("peak_reserved"),
        "memory_cached": read("reserved"),
        "max_memory_cached": read("peak_reserved"),
        "memory_stats": stats,
        "memory_stats_as_nested_dict": lambda device=None: _nested(stats(device)),
        "memory_summary": lambda device=None, abbreviated=False: str(stats(device)),
        "memory_snapshot": lambda *_, **__: [],
        "mem_get_info": mem_get_info,
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "reset_max_memory_cached": reset,
        "reset_accumulated_memory_stats": lambda device=None: None,
        "empty_cache": empty_cache,
        "ipc_collect": lambda: None,
        "set_per_process_memory_fraction": lambda fraction, device=None: None,
        "get_allocator_backend": lambda: "native",
    }


def _nested(stats: dict[str, int]) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}."""
    found: dict[str, Any] = {}
    for key, value in stats.items():
        *path, last = key.split(".")
        inner = found
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return found


def _index(device: Any) -> int:
    if device is None:
        return world.default_device.index or 0
    return device if isinstance(device, int) else resolve_device(device).index or 0


# -- random numbers -----------------------------------------------------------------------------------------


def _random(n_devices: int) -> dict[str, Any]:
    """The device's generators have a seed and a state that can be saved; simulated operators do not use them."""
    states = [torch.zeros(16, dtype=torch.uint8) for _ in range(n_devices)]
    seeds = [0] * n_devices

    def seed_all(seed: int) -> None:
        seeds[:] = [int(seed)] * n_devices

    def set_state(state: torch.Tensor, device: Any = None) -> None:
        states[_index(device)] = state

    def set_all_states(all_states: Sequence[torch.Tensor]) -> None:
        for index, state in enumerate(all_states):
            set_state(state, index)

    return {
        "manual_seed": lambda seed: seed_all(seed),
        "manual_seed_all": seed_all,
        "seed": lambda: seed_all(0),
        "seed_all": lambda: seed_all(0),
        "initial_seed": lambda: seeds[world.default_device.index or 0],
        "get_rng_state": lambda device=None: states[_index(device)].clone(),
        "get_rng_state_all": lambda: [s.clone() for s in states],
        "set_rng_state": set_state,
        "set_rng_state_all": set_all_states,
        "default_generators": tuple(
            torch.Generator(device=torch.device(world.device_type, i)) for i in range(n_devices)
        ),
    }


# -- around the module ----------------------------------------------------------------------------------------


def _install_accelerator(profile: DeviceProfile, n_devices: int, module: Any) -> None:
    accelerator: Any = torch.accelerator
    accelerator.is_available = lambda: True
    accelerator.device_count = lambda: n_devices
    torch._C._get_accelerator = lambda *args: torch.device(profile.kind)
    accelerator.current_accelerator = lambda check_available=False: torch.device(profile.kind)
    accelerator.current_device_index = module.current_device
    accelerator.current_device_idx = module.current_device
    accelerator.set_device_index = module.set_device
    accelerator.set_device_idx = module.set_device
    accelerator.current_stream = streams.current_stream
    accelerator.set_stream = streams.set_stream
    accelerator.synchronize = streams.synchronize
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats",
                 "empty_cache", "reset_peak_memory_stats"):  # fmt: skip
        if hasattr(accelerator, name):
            setattr(accelerator, name, getattr(module, name))


def _install_cuda_only(profile: DeviceProfile) -> None:
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats",
                 "empty_cache", "reset_peak_memory_stats", "mem_get_info", "memory_summary"):  # fmt: skip
        setattr(torch.cuda.memory, name, getattr(torch.cuda, name))
    for name in ("get_rng_state", "set_rng_state", "manual_seed", "manual_seed_all", "get_rng_state_all",
                 "set_rng_state_all", "seed", "seed_all", "initial_seed"):  # fmt: skip
        setattr(torch.cuda.random, name, getattr(torch.cuda, name))
    torch.cuda.memory._record_memory_history = lambda *_, **__: None
    torch.cuda.memory._dump_snapshot = lambda *_, **__: world.recorder.notice(
        "torch.cuda.memory._dump_snapshot was not written: use windtunnel run --snapshot"
    )
    torch.version.cuda = torch.version.cuda or "13.0"
    torch.backends.cudnn.is_available = lambda: True
    torch.backends.cudnn.version = lambda: 91600
    # In a CUDA build, a recurrent layer would pack its weights with a cuDNN kernel, which needs a real GPU.
    torch.backends.cudnn.is_acceptable = lambda tensor: False
    torch.backends.cuda.is_built = lambda: True
    setattr(torch._C, "_cuda_getCurrentRawStream", _raw_stream)  # noqa: B010  (bitsandbytes takes it when imported)
    nvtx: Any = torch.cuda.nvtx
    nvtx.range_push = lambda message: 0
    nvtx.range_pop = lambda: 0
    nvtx.mark = lambda message: None
    nvtx.range = lambda message, *_, **__: contextlib.nullcontext()
    torch.cuda.nccl.version = lambda: (2, 27, 3)
    graphs: Any = torch.cuda
    graphs.CUDAGraph = _NoGraph
    graphs.graph = lambda *_, **__: contextlib.nullcontext()
    graphs.graph_pool_handle = lambda: (0, 0)
    graphs.make_graphed_callables = _make_graphed_callables
    install_data_parallel()
    torch.cuda.streams.Stream, torch.cuda.streams.Event = streams.Stream, streams.Event  # type: ignore[misc, assignment]
    torch.cuda.streams.ExternalStream = streams.ExternalStream  # type: ignore[misc, assignment]
    install_cuda_build(profile)
    for place in (torch._C, torch.cuda):
        setattr(place, "_CudaDeviceProperties", _Properties)  # noqa: B010  a CPU build has none
    for name, legacy_type in legacy_types("cuda").items():
        setattr(torch.cuda, name, legacy_type)
    torch.amp.grad_scaler.amp_definitely_not_available = lambda: False  # type: ignore[attr-defined]
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False


def _raw_stream(device: int = 0) -> int:
    return 0


class _NoGraph:
    """CUDA graphs replay kernels; the simulated device runs them as they are called."""

    def __init__(self, *_: Any, **__: Any) -> None:
        world.recorder.notice(
            "CUDA graphs are not simulated: the captured code ran once, eagerly, and replays did nothing"
        )

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _make_graphed_callables(callables: Any, *_: Any, **__: Any) -> Any:
    _NoGraph()
    return callables
