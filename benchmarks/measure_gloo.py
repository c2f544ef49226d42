"""Run a script for real as one of torchrun's processes and write every allocation torch's profiler saw.

torchrun --nproc-per-node N benchmarks/measure_gloo.py FOLDER script.py [arguments] ──> FOLDER/rank{R}.json

The profiler is active in gloo's threads while they work, so a collective's internal copies are seen too.
"""

from __future__ import annotations

import bisect
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed

_PAUSE_S = 0.002
_COALESCED = "c10d::broadcast_coalesced"  # DDP's first collective; it waits in C++, where we cannot pause
_WAITS = ("_c10d_functional::wait_tensor", _COALESCED)


def measure(script: str, arguments: list[str]) -> list[tuple[int, int]]:
    """Address and signed size of all memory events, in time order."""
    _let_gloo_finish()
    sys.argv = [script, *arguments]
    with torch.profiler.profile(
        profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]
    ) as profiler:
        runpy.run_path(script, run_name="__main__")
    return _allocations(profiler.profiler.kineto_results.experimental_event_tree())


def _allocations(roots: list[Any]) -> list[tuple[int, int]]:
    seen, waits = [], []
    todo = [(event, False) for event in roots]
    while todo:
        event, is_own_copy = todo.pop()
        if event.tag == torch._C._profiler._EventType.Allocation:
            seen.append(
                (event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size, is_own_copy)
            )
        elif event.name in _WAITS:
            waits.append(event.end_time_ns)
        todo += [(child, is_own_copy or event.name.startswith("c10d::")) for child in event.children]
    seen.sort()
    events = [(when, address, n_bytes) for when, address, n_bytes, _ in seen]
    events += _unseen_frees(seen, sorted(waits))
    return [(address, n_bytes) for _, address, n_bytes in sorted(events)]


def _unseen_frees(seen: list[tuple[int, int, int, bool]], waits: list[int]) -> list[tuple[int, int, int]]:
    """A collective's internal copies end with the wait for it, although gloo's thread may drop them later."""
    held: dict[int, tuple[int, int]] = {}
    lost = []
    for when, address, n_bytes, is_own_copy in seen:
        if address in held and n_bytes > 0:
            lost.append((*held[address], address))
        held.pop(address, None)
        if n_bytes > 0 and is_own_copy:
            held[address] = (when, n_bytes)
    lost += [(*each, address) for address, each in held.items()]
    ends = [(bisect.bisect(waits, when), address, n_bytes) for when, n_bytes, address in lost]
    return [(waits[i], address, -n_bytes) for i, address, n_bytes in ends if i < len(waits)]


def _let_gloo_finish() -> None:
    """Pause after each wait, until gloo's thread has released its tensors.

    After a collective ends, that thread runs without the profiler: its frees would be missed.
    """

    def paused(wait: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = wait(*args, **kwargs)
            time.sleep(_PAUSE_S)
            return result

        return run

    def broadcast_coalesced(*args: Any) -> None:
        with torch.profiler.record_function(_COALESCED):
            broadcast(*args)

    broadcast = torch.distributed._broadcast_coalesced
    torch.distributed._broadcast_coalesced = broadcast_coalesced
    torch.distributed.Work.wait = paused(torch.distributed.Work.wait)
    wait_tensor = torch.ops._c10d_functional.wait_tensor
    for operator in (wait_tensor, wait_tensor.default):
        operator._op = paused(operator._op)


if __name__ == "__main__":
    folder, program, *rest = sys.argv[1:]
    events = measure(program, rest)
    (Path(folder) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(events), encoding="utf-8")
