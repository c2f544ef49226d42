"""`triton.runtime.driver.active` for the simulated device: what packages ask to choose their configurations.

get_current_target() ──> GPUTarget("cuda", 80, 32)        utils.get_device_properties(0) ──> shared memory, multiprocessors
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.launches import record_launch, tensors_in
from windtunnel.capture.pytorch.tensors.storage import world

__all__ = ["Driver"]

_CACHE_BYTES = 256 << 20  # Triton's own buffer to empty the cache between two runs of a benchmark
_WARP = 32


class Driver:
    """The one active driver of Triton."""

    benchmark: Callable[..., Any]  # set with the launches

    def __init__(self, triton: types.ModuleType) -> None:
        self._target: Any = triton.backends.compiler.GPUTarget
        self.utils = _Utils()
        self.launcher_cls = _Launcher

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        major, minor = torch.cuda.get_device_capability()
        return self._target("cuda", 10 * major + minor, _WARP)

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return torch.cuda.get_device_capability(device)

    def get_current_device(self) -> int:
        return torch.cuda.current_device()

    def set_current_device(self, device: int) -> None:
        torch.cuda.set_device(device)

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def get_device_interface(self) -> types.ModuleType:
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        return self.benchmark

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(_CACHE_BYTES // 4, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "CUdeviceptr" if ty.startswith("*") else ty

    def assemble_tensormap_to_arg(self, tensormaps_info: Any, args: Any) -> Any:
        return args


class _Utils:
    """What the driver's C side answers."""

    def get_device_properties(self, device: int = 0) -> dict[str, int]:
        properties: Any = torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": properties.shared_memory_per_block_optin,
            "max_num_regs": properties.regs_per_multiprocessor,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": _WARP,
            "sm_clock_rate": 1_410_000,
            "mem_clock_rate": 1_593_000,
            "mem_bus_width": 5120,
        }

    def load_binary(self, name: str, *_: Any) -> tuple[int, int, int, int, int]:
        """Module, function, registers, spills, most threads: of a kernel that was compiled for the device but is not there."""
        registers = int(world.recorder.note_unknown(f"how many registers the kernel {name} uses", 64).value)  # type: ignore[call-overload]
        return 0, 0, registers, 0, 1024

    def unload_module(self, *_: Any) -> None:
        pass

    def cuOccupancyMaxActiveClusters(self, *_: Any) -> int:
        return torch.cuda.get_device_properties(0).multi_processor_count

    def set_printf_fifo_size(self, size: int) -> None:
        pass


class _Launcher:
    """A kernel that the program compiled itself (`kernel.warmup`, `triton.compile`) and launches by hand."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.name = getattr(metadata, "name", None) or getattr(
            getattr(source, "fn", None), "__name__", "kernel"
        )

    def __call__(self, x: int, y: int, z: int, *given: Any) -> None:
        tensors = [t for value in given for t in tensors_in(value)]
        record_launch(f"triton.{self.name}", f"grid=({x},{y},{z})", tensors, tensors)
