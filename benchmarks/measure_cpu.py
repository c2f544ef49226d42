"""Run a script for real on the CPU and print every allocation torch's profiler saw.

python benchmarks/measure_cpu.py script.py OUT.json
"""

from __future__ import annotations

import json
import runpy
import sys
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def measure(script: str) -> dict[str, list[list[int]]]:
    """Signed sizes of all memory events in time order, cut at the end of each optimizer step."""
    ends: list[int] = []
    first: list[torch.optim.Optimizer] = []

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        first.append(optimizer)
        if optimizer is first[0]:  # with several optimizers, the first one counts the steps
            ends.append(time.time_ns())

    register_optimizer_step_post_hook(note)
    with torch.profiler.profile(
        profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]
    ) as profiler:
        sys.argv[1:] = []
        runpy.run_path(script, run_name="__main__")
    events = sorted(_allocations(profiler), key=lambda e: e[0])
    steps: list[list[int]] = [[]]
    for when, n_bytes in events:
        while len(steps) <= len(ends) and when > ends[len(steps) - 1]:
            steps.append([])
        steps[-1].append(n_bytes)
    return {"steps": steps}


def _allocations(profiler: torch.profiler.profile) -> list[tuple[int, int]]:
    found = []
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            found.append((event.start_ns(), event.nbytes()))
    return found


if __name__ == "__main__":
    target = sys.argv[2]
    result = measure(sys.argv[1])
    with open(target, "w", encoding="utf-8") as out:
        json.dump(result, out)
