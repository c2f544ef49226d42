"""Run a script for real, repeatedly, and print the seconds of each training step.

python benchmarks/local_time_steps.py script.py N_STEPS [thread]
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import runpy
import sys
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

_MOST_RUNS = 12


def measure(script: str, n_steps: int, clock: str = "wall") -> list[float]:
    """From the end of one step to the end of the next; the first of each run of the script is warm-up."""
    read = time.thread_time if clock == "thread" else time.perf_counter
    if clock == "thread":  # all work in one thread, so that its CPU time is the total
        torch.set_num_threads(1)
        torch.autograd.set_multithreading_enabled(False)
    ends: list[float] = []
    first: list[object] = []

    def note(optimizer: object, *_: object) -> None:
        first.append(optimizer)
        if optimizer is first[0]:  # with several optimizers, the first one counts the steps
            ends.append(read())

    register_optimizer_step_post_hook(note)
    found: list[float] = []
    for number in range(_MOST_RUNS):
        ends.clear()
        first.clear()
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(script, run_name="__main__")
        if number:  # the very first run is cold
            found += [b - a for a, b in itertools.pairwise(ends)]
        if len(found) >= n_steps:
            break
    return found


if __name__ == "__main__":
    target, count, *rest = sys.argv[1:]
    sys.argv[1:] = []
    sys.stdout.write(json.dumps(measure(target, int(count), *rest)))
