"""`torch_npu.profiler`: its names, its schedule and its control flow, without a trace.

with torch_npu.profiler.profile(schedule=…) as prof: … prof.step() ──> handlers are not called; one notice

The trace of a dry run is windtunnel's own (level 3).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Literal

import torch

from windtunnel.capture.pytorch.tensors.storage import world

__all__ = ["profiler_names"]


class _Activity(enum.Enum):
    CPU = 0
    NPU = 1


class _Level:
    Level_none, Level0, Level1, Level2 = "Level_none", "Level0", "Level1", "Level2"


class _Metrics:
    AiCoreNone = "ACL_AICORE_NONE"
    PipeUtilization = "ACL_AICORE_PIPE_UTILIZATION"
    ArithmeticUtilization = "ACL_AICORE_ARITHMETIC_UTILIZATION"
    Memory = "ACL_AICORE_MEMORY_BANDWIDTH"
    MemoryL0 = "ACL_AICORE_L0B_AND_WIDTH"
    MemoryUB = "ACL_AICORE_MEMORY_UB"
    ResourceConflictRatio = "ACL_AICORE_RESOURCE_CONFLICT_RATIO"
    L2Cache = "ACL_AICORE_L2_CACHE"
    MemoryAccess = "ACL_AICORE_MEMORY_ACCESS"


class _Export:
    Text, Db = "text", "db"


class _Host:
    CPU, MEM, DISK, NETWORK, OSRT = "cpu", "mem", "disk", "network", "osrt"


class _Config:
    """`_ExperimentalConfig`: keeps what it is given."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class _Profile:
    """`torch_npu.profiler.profile`: counts steps and records nothing."""

    def __init__(
        self,
        *,
        activities: Any = None,
        schedule: Callable[[int], Any] | None = None,
        on_trace_ready: Any = None,
        **options: Any,
    ) -> None:
        self.step_num = 0
        self.schedule, self.on_trace_ready = schedule, on_trace_ready
        world.recorder.notice(
            "torch_npu.profiler recorded nothing: use windtunnel run --level 3 for a trace of the simulated device"
        )

    def __enter__(self) -> _Profile:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        return False

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def step(self) -> None:
        self.step_num += 1

    def add_metadata(self, key: str, value: str) -> None: ...

    def add_metadata_json(self, key: str, value: str) -> None: ...

    def export_chrome_trace(self, output_path: str) -> None: ...

    def export_memory_timeline(self, output_path: str, device: str | None = None) -> None: ...

    def export_stacks(self, output_path: str, metric: str = "self_cpu_time_total") -> None: ...


def _tensorboard_trace_handler(
    dir_name: str | None = None,
    worker_name: str | None = None,
    analyse_flag: bool = True,
    async_mode: bool = False,
) -> Callable[[Any], None]:
    return lambda profile: None


def _schedule(
    wait: int, active: int, warmup: int = 0, repeat: int = 0, skip_first: int = 0
) -> Callable[[int], Any]:
    return torch.profiler.schedule(
        wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first
    )


def profiler_names() -> dict[str, Any]:
    """What users find in `torch_npu.profiler`."""
    return {
        "profile": _Profile,
        "_KinetoProfile": _Profile,
        "ProfilerActivity": _Activity,
        "ProfilerAction": torch.profiler.ProfilerAction,
        "ProfilerLevel": _Level,
        "AiCMetrics": _Metrics,
        "ExportType": _Export,
        "HostSystem": _Host,
        "_ExperimentalConfig": _Config,
        "tensorboard_trace_handler": _tensorboard_trace_handler,
        "schedule": _schedule,
        "supported_activities": lambda: set(_Activity),
        "supported_profiler_level": lambda: {"Level_none", "Level0", "Level1", "Level2"},
        "supported_export_type": lambda: {_Export.Text, _Export.Db},
    }
