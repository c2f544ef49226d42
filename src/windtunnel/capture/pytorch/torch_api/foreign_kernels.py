"""Kernels that reach a device past torch: those compiled with NVRTC are recorded, others are refused with a sentence.

torch.cuda._compile_kernel(source, "add") ──> a kernel; a launch of it ──> OP row "nvrtc.add" with grid, block and tensors
tensor.__dlpack__(), .__cuda_array_interface__ (CuPy, CuTe, Numba …)   ──> NoMemory: there are no bytes to hand out
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils.dlpack

from windtunnel.capture.pytorch.kernels.define_operator import announce
from windtunnel.capture.pytorch.kernels.launches import record_launch
from windtunnel.capture.pytorch.tensors.storage import CPU, sim_of

__all__ = ["NoMemory", "install_foreign_kernels"]

Tensor = torch.Tensor
_FREE_SHARED = 48 << 10  # bytes of shared memory that a kernel may use without being configured for more


class NoMemory(RuntimeError):
    """A library outside torch asks for the memory of a simulated tensor."""


def install_foreign_kernels(device_type: str) -> None:
    patched: Any = Tensor
    patched.__dlpack__ = _refusing(Tensor.__dlpack__, "DLPack")
    for module in (torch, torch.utils.dlpack):
        if hasattr(module, "to_dlpack"):
            vars(module)["to_dlpack"] = _refusing(module.to_dlpack, "DLPack")
    if device_type != "cuda":
        return
    interface: Any = Tensor.__cuda_array_interface__
    patched.__cuda_array_interface__ = property(_refusing(interface.__get__, "__cuda_array_interface__"))
    for name in ("_compile_kernel", "compile_kernel"):
        if hasattr(torch.cuda, name):
            setattr(torch.cuda, name, _compile_kernel)


def _refusing(original: Callable[..., Any], what: str) -> Callable[..., Any]:
    def ask(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if sim_of(self) is not None:
            raise NoMemory(
                f"a library outside torch asked for the memory of a simulated tensor ({what}), which has none: a dry run"
                " cannot run kernels of CuPy, CuTe, Numba and the like; make the call an operator with"
                " torch.library.custom_op and register_fake, or guard it with `if not windtunnel.is_dry_run():`"
            )
        return original(self, *args, **kwargs)

    return ask


def _compile_kernel(kernel_source: str, kernel_name: str, *_: Any, **__: Any) -> _Kernel:
    return _Kernel(kernel_name)


class _Kernel:
    """A kernel that NVRTC would have compiled: it may read and write whatever it is given."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._shared_bytes = _FREE_SHARED

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        properties: Any = torch.cuda.get_device_properties(0)
        limit = properties.shared_memory_per_block_optin
        if shared_mem_bytes > limit:
            raise RuntimeError(
                f"Requested shared memory ({shared_mem_bytes} bytes) exceeds device limit ({limit} bytes)."
                " Consider reducing block size or shared memory usage."
            )
        self._shared_bytes = shared_mem_bytes

    def __call__(
        self,
        grid: Sequence[int] = (1, 1, 1),
        block: Sequence[int] = (1, 1, 1),
        args: Sequence[Any] | None = None,
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        tensors = [a for a in args or () if isinstance(a, Tensor)]
        for each in args or ():
            if not isinstance(each, (Tensor, int, float)):
                raise TypeError(f"Unsupported argument type: {type(each)}")
        if any((sim.device if (sim := sim_of(t)) is not None else t.device) == CPU for t in tensors):
            raise ValueError("All tensor arguments must be CUDA tensors or pinned CPU tensors")
        if shared_mem >= _FREE_SHARED and shared_mem > self._shared_bytes:
            raise RuntimeError(
                f"Kernel requires {shared_mem} bytes of shared memory (>= 48KB), but only {self._shared_bytes} bytes"
                " configured. Call kernel.set_shared_memory_config(shared_mem) after compilation and before launching the"
                " kernel."
            )
        announce("kernels compiled with NVRTC were recorded with their tensors, not compiled or run")
        sizes = f"grid=({','.join(map(str, grid))}) block=({','.join(map(str, block))})"
        record_launch(f"nvrtc.{self.name}", sizes, tensors, tensors)
