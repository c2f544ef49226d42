"""How much memory operators take while they run, beyond what they return.

operators in a profiled region each ──> allocations in order ──> highest sum - bytes of the results
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    _EventType,
    _ExperimentalConfig,
    _RecordFunctionFast,
)

__all__ = ["AcceleratorScratch", "HostScratch", "scratch_meter"]

_CONFIG = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
_ACTIVITIES = {ProfilerActivity.CPU}
_PREFIX = "windtunnel-"


class HostScratch:
    """Torch's own profiler sees every allocation of the CPU: one session for all operators."""

    def __init__(self) -> None:
        self._results: dict[int, int] = {}

    def start(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it announces every start and stop otherwise
        _prepare_profiler(_CONFIG, _ACTIVITIES)
        _enable_profiler(_CONFIG, _ACTIVITIES)

    def run(self, signature: int, operator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        before = _storage_bytes((args, kwargs))
        with _RecordFunctionFast(f"{_PREFIX}{signature}"):
            result = operator(*args, **kwargs)
        self._results[signature] = _new_bytes(result, before)
        return result

    def stop(self) -> dict[int, int]:
        """Bytes of scratch by signature."""
        found: dict[int, int] = {}
        for root in _disable_profiler().experimental_event_tree():
            if root.name.startswith(_PREFIX):
                signature = int(root.name.removeprefix(_PREFIX))
                sizes: list[tuple[int, int]] = []
                _collect(root, sizes)
                found[signature] = max(0, _highest(sizes) - self._results.get(signature, 0))
        return found


class AcceleratorScratch:
    """The caching allocator's own high-water mark."""

    def __init__(self, device: torch.device) -> None:
        self._module = getattr(torch, device.type)
        self._found: dict[int, int] = {}

    def start(self) -> None: ...

    def run(self, signature: int, operator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        before = _storage_bytes((args, kwargs))
        self._module.synchronize()
        self._module.reset_peak_memory_stats()
        live = self._module.memory_allocated()
        result = operator(*args, **kwargs)
        highest = self._module.max_memory_allocated() - live
        self._found[signature] = max(0, highest - _new_bytes(result, before))
        return result

    def stop(self) -> dict[int, int]:
        return self._found


def scratch_meter(device: torch.device) -> HostScratch | AcceleratorScratch:
    return HostScratch() if device.type == "cpu" else AcceleratorScratch(device)


def _new_bytes(result: Any, before: dict[int, int]) -> int:
    """Of what an operator returned: bytes that were not there before."""
    return sum(n_bytes - before.get(key, 0) for key, n_bytes in _storage_bytes(result).items())


def _storage_bytes(values: Any) -> dict[int, int]:
    """Of all tensors, each storage once."""
    if isinstance(values, torch.Tensor):
        storage = values.untyped_storage()
        return {storage._cdata: storage.nbytes()}
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (list, tuple)):
        return {}
    return {key: n_bytes for each in values for key, n_bytes in _storage_bytes(each).items()}


def _collect(event: Any, found: list[tuple[int, int]]) -> None:
    if event.tag == _EventType.Allocation:
        found.append((event.start_time_ns, event.extra_fields.alloc_size))
    for child in event.children:
        _collect(child, found)


def _highest(sizes: list[tuple[int, int]]) -> int:
    live = highest = 0
    for _, n_bytes in sorted(sizes, key=lambda each: each[0]):
        live += n_bytes
        highest = max(highest, live)
    return highest
