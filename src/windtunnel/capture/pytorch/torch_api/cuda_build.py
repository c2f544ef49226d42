"""The names that a CUDA build of torch has and a CPU build lacks: `torch._C._cuda_…`, cudart, memory pools.

    torch.cuda.memory._snapshot() ──> torch's own Python ──> torch._C._cuda_memorySnapshot ──> the simulated device
    torch.cuda.cudart().cudaMemGetInfo(0), torch.cuda.MemPool() ──────────────────────────────┘

cuda.py replaces the functions that matter; what is left of torch's Python calls these. They replace the C++ of a CUDA
build too, which would look for a driver. The list is that of torch's own stubs: tests/capture/pytorch/test_cuda_build.py
reads them and names what is not answered.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from windtunnel.capture.pytorch.tensors.storage import world
from windtunnel.capture.pytorch.torch_api import streams
from windtunnel.devices import DeviceProfile

__all__ = ["install_cuda_build"]

_NCCL = (2, 27, 3)
_CUDA = 13000  # torch.version.cuda, as C++ has it
_NO_STREAM = (0, 0, 1)


def install_cuda_build(profile: DeviceProfile) -> None:
    """Give torch._C and the modules of torch.cuda the names of a CUDA build; torch.cuda has its functions already."""
    cuda: Any = torch.cuda
    for name, value in {
        **_of_device(cuda),
        **_of_streams(cuda),
        **_of_memory(cuda),
        **_of_settings(profile),
        **_of_libraries(),
    }.items():
        setattr(torch._C, name, value)
    _install_runtime(cuda)
    _install_pools(cuda)
    for name, answer in _readings(cuda).items():
        setattr(cuda, name, answer)
    cuda.nvtx._nvtx = getattr(torch._C, "_nvtx")  # noqa: B009  made above


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


# -- torch._C -----------------------------------------------------------------------------------------------


def _of_device(cuda: Any) -> dict[str, Any]:
    return {
        "_cuda_init": _nothing,
        "_cuda_getDeviceCount": lambda: cuda.device_count(),
        "_cuda_getDevice": lambda: cuda.current_device(),
        "_cuda_setDevice": lambda device: cuda.set_device(device),
        "_cuda_exchangeDevice": cuda._exchange_device,
        "_cuda_maybeExchangeDevice": cuda._maybe_exchange_device,
        "_cuda_canDeviceAccessPeer": cuda.can_device_access_peer,
        "_cuda_getArchFlags": lambda: " ".join(cuda.get_arch_list()),
        "_cuda_getCompiledVersion": lambda: _CUDA,
        "_cuda_synchronize": lambda: cuda.synchronize(),
        "_cuda_ipc_collect": _nothing,
        "_cuda_sleep": _nothing,
        "_cuda_attach_out_of_memory_observer": _nothing,  # memory is judged after the run
    }


def _of_streams(cuda: Any) -> dict[str, Any]:
    def described(stream: Any) -> tuple[int, int, int]:
        return stream.stream_id, stream.device_index, stream.device_type

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        device = torch.device(world.device_type, device_index)
        cuda.set_stream(streams.Stream(device, number=stream_id))

    return {
        "_CudaStreamBase": streams.Stream,
        "_CudaEventBase": streams.Event,
        "_cuda_getCurrentStream": lambda device: described(cuda.current_stream(device)),
        "_cuda_getDefaultStream": lambda device: described(cuda.default_stream(device)),
        "_cuda_getStreamFromExternal": lambda data_ptr, device: (data_ptr, device, _NO_STREAM[2]),
        "_cuda_getCurrentRawStream": lambda device: cuda.current_stream(device).cuda_stream,
        "_cuda_setStream": set_stream,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_getCurrentBlasHandle": lambda: 1,
        "_cuda_getCurrentSolverHandle": lambda: 1,
    }


def _of_memory(cuda: Any) -> dict[str, Any]:
    def snapshot(mempool_id: Any = None) -> dict[str, Any]:
        world.recorder.notice(
            "torch.cuda's memory snapshot is empty in a dry run: use windtunnel run --snapshot"
        )
        traces: list[list[Any]] = [[] for _ in range(cuda.device_count())]
        return {
            "segments": [],
            "device_traces": traces,
            "allocator_settings": {},
            "external_annotations": [],
        }

    return {
        "_cuda_emptyCache": lambda: cuda.empty_cache(),
        "_cuda_memoryStats": lambda device: cuda.memory_stats_as_nested_dict(device),
        "_cuda_hostMemoryStats": dict,
        "_cuda_resetPeakMemoryStats": lambda device: cuda.reset_peak_memory_stats(device),
        "_cuda_resetAccumulatedMemoryStats": _nothing,
        "_cuda_resetAccumulatedHostMemoryStats": _nothing,
        "_cuda_resetPeakHostMemoryStats": _nothing,
        "_cuda_memorySnapshot": snapshot,
        "_cuda_record_memory_history": _nothing,
        "_cuda_record_memory_history_legacy": _nothing,
        "_cuda_isHistoryEnabled": lambda: False,
        "_cuda_allocationTraceback": _nothing,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_host_emptyCache": _nothing,
    }


def _of_settings(profile: DeviceProfile) -> dict[str, Any]:
    """What a program sets and reads back, and what changes no memory of ours."""
    found: dict[str, Any] = {"_cuda_clearCublasWorkspaces": _nothing}
    megabytes = 32 if profile.capability >= (9, 0) else 8
    for setter, getter, value in (
        ("_cuda_set_sync_debug_mode", "_cuda_get_sync_debug_mode", 0),
        ("_cuda_setCublasWorkspaceSize", "_cuda_getCublasWorkspaceSize", megabytes << 20),
        ("_cuda_setCublasLtWorkspaceSize", "_cuda_getCublasLtWorkspaceSize", megabytes << 20),
        ("_cuda_setMemoryFraction", "_cuda_getMemoryFraction", 1.0),
        ("_cuda_setMemoryMetadata", "_cuda_getMemoryMetadata", ""),
        ("_cuda_set_cudnn_benchmark_limit", "_cuda_get_cudnn_benchmark_limit", 10),
        ("_cudnn_set_conv_benchmark_empty_cache", "_cuda_get_conv_benchmark_empty_cache", True),
        ("_cuda_cudaCachingAllocator_enable", "_cuda_cudaCachingAllocator_is_enabled", True),
        ("_cuda_tunableop_enable", "_cuda_tunableop_is_enabled", False),
        ("_cuda_tunableop_tuning_enable", "_cuda_tunableop_tuning_is_enabled", True),
        ("_cuda_record_untuned_enable", "_cuda_record_untuned_is_enabled", False),
        ("_cuda_tunableop_set_max_tuning_duration", "_cuda_tunableop_get_max_tuning_duration", 30),
        ("_cuda_tunableop_set_max_tuning_iterations", "_cuda_tunableop_get_max_tuning_iterations", 100),
        (
            "_cuda_tunableop_set_filename",
            "_cuda_tunableop_get_filename",
            "tunableop_results.csv",
        ),
        ("_cuda_tunableop_set_rotating_buffer_size", "_cuda_tunableop_get_rotating_buffer_size", 0),
    ):
        found[setter], found[getter] = _setting(value)
    for library in ("Cublas", "CublasLt"):
        reset, size = found[f"_cuda_set{library}WorkspaceSize"], megabytes << 20
        found[f"_cuda_reset{library}WorkspaceSize"] = lambda reset=reset, size=size: reset(size)
    # torch 2.13's stubs and its own Python spell this one differently
    found["_cuda_tunableop_get_rotation_buffer_size"] = found["_cuda_tunableop_get_rotating_buffer_size"]
    return found | {
        "_cuda_tunableop_get_results": tuple,
        "_cuda_tunableop_get_validators": tuple,
        "_cuda_tunableop_read_file": lambda filename=None: False,
        "_cuda_tunableop_set_numerical_check_tolerances": _nothing,
    }


def _setting(value: Any) -> tuple[Callable[..., None], Callable[..., Any]]:
    held = [value]

    def change(new: Any, *_: Any) -> None:
        held[0] = new

    return change, lambda *_: held[0]


def _of_libraries() -> dict[str, Any]:
    major, minor, patch = _NCCL
    return {
        "_nccl_version": lambda: major << 32 | minor << 16 | patch,
        "_nccl_version_suffix": lambda: b"",
        "_nccl_unique_id": lambda: bytes(128),
        "_nvtx": types.SimpleNamespace(
            rangePushA=lambda message: 0,
            rangePop=lambda: 0,
            rangeStartA=lambda message: 0,
            rangeEnd=_nothing,
            markA=_nothing,
            deviceRangeStart=lambda message, stream: None,
            deviceRangeEnd=_nothing,
            getVersionInt=lambda: 3,
        ),
    }


# -- the CUDA runtime ---------------------------------------------------------------------------------------


class _Error(enum.IntEnum):
    success = 0


def _install_runtime(cuda: Any) -> None:
    """`torch.cuda.cudart()`: torch's own binding of a few calls; each of them succeeds."""

    def succeed(*_: Any) -> _Error:
        return _Error.success

    names = ("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister", "cudaStreamCreate",
             "cudaStreamDestroy", "cudaDeviceSynchronize", "cudaProfilerInitialize")  # fmt: skip
    runtime: Any = types.ModuleType("torch._C._cudart")
    vars(runtime).update(dict.fromkeys(names, succeed))
    runtime.cudaError = _Error
    runtime.cudaGetErrorString = lambda code: "no error" if code == 0 else "unknown error"
    runtime.cudaMemGetInfo = lambda device=None: cuda.mem_get_info(device)
    for place in (torch._C, cuda):
        setattr(place, "_cudart", runtime)  # noqa: B010  a CPU build has none


# -- pools of memory and allocators of the program ------------------------------------------------------------


class MemPool:
    """`torch.cuda.MemPool`: its blocks come from the common pool here, and the report says so."""

    _numbers = itertools.count(1)

    def __init__(self, allocator: Any = None, *_: Any, **__: Any) -> None:
        self.allocator = allocator
        self.id = (0, next(self._numbers))
        world.recorder.notice(
            "memory pools of the script (torch.cuda.MemPool) are not simulated: their blocks come from the common pool,"
            " so fragmentation may differ"
        )

    def use_count(self) -> int:
        return 1

    def snapshot(self, include_traces: bool = True) -> list[Any]:
        return []


@contextlib.contextmanager
def use_mem_pool(pool: Any, device: Any = None) -> Iterator[None]:
    """`with torch.cuda.use_mem_pool(pool):`"""
    yield


class CUDAPluggableAllocator:
    """An allocator of the user's own, in a shared library: named, never loaded."""

    def __init__(self, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
        self.path = path_to_so_file

    def allocator(self) -> Any:
        return self


def _change_current_allocator(allocator: Any) -> None:
    world.recorder.notice(
        "torch.cuda.memory.change_current_allocator changed nothing: a dry run keeps the allocator of --device"
    )


def _install_pools(cuda: Any) -> None:
    state = type("_cuda_CUDAAllocator_AllocatorState", (), {})
    handles = itertools.count(1)
    for name in ("_cuda_beginAllocateToPool", "_cuda_beginAllocateCurrentThreadToPool", "_cuda_endAllocateToPool",
                 "_cuda_beginAllocateCurrentStreamToPool", "_cuda_releasePool", "_cuda_setCheckpointPoolState"):  # fmt: skip
        setattr(torch._C, name, _nothing)
    given: dict[str, Any] = {
        "_MemPool": MemPool,
        "_graph_pool_handle": lambda: (0, next(handles)),
        "_cuda_CUDAAllocator": CUDAPluggableAllocator,
        "_cuda_CUDAAllocator_AllocatorState": state,
        "_cuda_getCheckpointState": lambda device, mempool: state(),
        "_cuda_checkPoolLiveAllocations": lambda device, mempool_id, expected_live_allocations: True,
        "_cuda_customAllocator": lambda alloc_fn, free_fn: CUDAPluggableAllocator("", "", ""),
        "_cuda_getAllocator": lambda: CUDAPluggableAllocator("", "", ""),
        "_cuda_changeCurrentAllocator": _change_current_allocator,
    }
    for name, value in given.items():
        setattr(torch._C, name, value)
    for name, replacement in (
        ("MemPool", MemPool),
        ("use_mem_pool", use_mem_pool),
        ("CUDAPluggableAllocator", CUDAPluggableAllocator),
        ("change_current_allocator", _change_current_allocator),
    ):
        setattr(cuda, name, replacement)
        setattr(cuda.memory, name, replacement)


# -- what a driver reports ------------------------------------------------------------------------------------


def _readings(cuda: Any) -> dict[str, Any]:
    """What nvidia-smi would say of an idle card: programs log it."""
    return {
        "device_memory_used": lambda device=None: cuda.memory_reserved(device),
        "memory_usage": lambda device=None: 0,
        "temperature": lambda device=None: 0,
        "power_draw": lambda device=None: 0,
        "clock_rate": lambda device=None: 0,
        "list_gpu_processes": lambda device=None: "no processes are running",
        "get_stream_from_external": lambda data_ptr, device=None: streams.ExternalStream(data_ptr, device),
    }
