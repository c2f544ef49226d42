"""Run a script for real as one of torchrun's processes and write every allocation torch's profiler saw.

torchrun --nproc-per-node N benchmarks/measure_gloo.py FOLDER script.py [arguments] ──> FOLDER/rank{R}.json

Gloo's threads carry the profiler while they work, so the copies a collective makes for itself are seen too.
"""

from __future__ import annotations

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


def measure(script: str, arguments: list[str]) -> list[tuple[int, int]]:
    """Address and signed size of all memory events, in time order."""
    _let_gloo_finish()
    sys.argv = [script, *arguments]
    with torch.profiler.profile(
        profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]
    ) as profiler:
        runpy.run_path(script, run_name="__main__")
    found = []
    todo = list(profiler.profiler.kineto_results.experimental_event_tree())
    while todo:
        event = todo.pop()
        if event.tag == torch._C._profiler._EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
        todo += event.children
    return [(address, n_bytes) for _, address, n_bytes in sorted(found, key=lambda each: each[0])]


def _let_gloo_finish() -> None:
    """Pause after each wait, until gloo's thread has let go of its tensors.

    From the end of a collective on that thread runs without the profiler: what it were to free would go unseen.
    """

    def paused(wait: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = wait(*args, **kwargs)
            time.sleep(_PAUSE_S)
            return result

        return run

    torch.distributed.Work.wait = paused(torch.distributed.Work.wait)
    wait_tensor = torch.ops._c10d_functional.wait_tensor
    for operator in (wait_tensor, wait_tensor.default):
        operator._op = paused(operator._op)


if __name__ == "__main__":
    folder, program, *rest = sys.argv[1:]
    events = measure(program, rest)
    (Path(folder) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(events), encoding="utf-8")
