"""What collecting costs one tool on one model, in a separate process: run by race.py, with the tool's Python.

    bare steps, then collected steps ──> least CPU time of each, peak memory ──> one line of JSON

Imports windtunnel only if that is the tool: it must run where only the other tool is installed.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.probe.models import build

_OFF = "off"


def main() -> None:
    """Arguments: tool (windtunnel, msprobe), model or `calls`, level, task, summary mode, rounds; `off` as task."""
    tool, model, level, task, summary, rounds = sys.argv[1:7]
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nothing:
        out, sys.stdout = sys.stdout, nothing  # the other tool prints a line per step
        try:
            measure = _calls if model == "calls" else _training
            found = measure(tool, model, folder, level, task, summary, int(rounds))
        finally:
            sys.stdout = out
    sys.stdout.write(json.dumps(found) + "\n")


def _training(tool: str, name: str, folder: str, level: str, task: str, summary: str, rounds: int) -> dict:
    model, loss = build(name)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step(debugger) -> float:
        gc.collect()
        began = time.process_time()
        if debugger is not None:
            debugger.start(model=model)
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        return time.process_time() - began

    # Bare steps first: a tool may leave hooks behind, and a bare step must be bare.
    bare = [step(None) for _ in range(rounds + 2)]
    peak = _peak()
    debugger = _debugger(tool, folder, level, task, summary)
    collected = [step(debugger) for _ in range(rounds + 2)]
    return {"bare": min(bare), "collected": min(collected), "added_peak": (_peak() - peak) * 1024}


def _calls(tool: str, _: str, folder: str, level: str, task: str, summary: str, rounds: int) -> dict:
    """Cost of one tiny API call when a step has this many of them."""
    x = torch.randn(8)
    debugger = _debugger(tool, folder, level, task, summary)
    found = {}
    for n in (2000, 8000, 16000):
        debugger.start()
        began = time.process_time()
        for _ in range(n):
            torch.relu(x)
        found[str(n)] = (time.process_time() - began) / n
        debugger.stop()
        debugger.step()
    return found


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _debugger(tool: str, folder: str, level: str, task: str, summary: str):
    real = "statistics" if task == _OFF else task
    config = {
        "task": real,
        "dump_path": folder,
        "rank": [],
        "step": [10**6] if task == _OFF else [],
        "level": level,
    }
    config[real] = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": summary}
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(config))
    if tool == "msprobe":
        from msprobe.pytorch import PrecisionDebugger
    else:
        from windtunnel.pytorch import PrecisionDebugger
    return PrecisionDebugger(config_path=str(path))


if __name__ == "__main__":
    main()
