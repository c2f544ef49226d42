"""The table of allocator models, by name."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.memory.allocators.cuda.alloc_conf import cuda_rules
from windtunnel.memory.allocators.cuda.allocator import CudaAllocator
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.memory.allocators.models.cpu import build_cpu
from windtunnel.memory.allocators.models.megengine import build_megengine
from windtunnel.memory.allocators.models.mindspore import build_mindspore
from windtunnel.memory.allocators.models.npu import build_npu

__all__ = ["BUILDERS"]


def _cuda(torch: str, conf: str, device_bytes: int | None) -> Allocator:
    return CudaAllocator("cuda", cuda_rules(conf, torch), device_bytes)


def _cuda_expandable(torch: str, conf: str, device_bytes: int | None) -> Allocator:
    conf = f"expandable_segments:True,{conf}" if conf.strip() else "expandable_segments:True"
    return CudaAllocator("cuda-expandable", cuda_rules(conf, torch), device_bytes)


BUILDERS: dict[str, Callable[..., Allocator]] = {
    "cuda": _cuda,
    "cuda-expandable": _cuda_expandable,
    "npu": build_npu,
    "mindspore": build_mindspore,
    "megengine": build_megengine,
    "cpu": build_cpu,
}
