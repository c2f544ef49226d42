"""One program in a process of its own, as `benchmarks.dtr.prediction` asks for it.

python -m benchmarks.dtr.measure dry SCRIPT FOLDER                       ──> FOLDER/recording.arrows
python -m benchmarks.dtr.measure live SCRIPT THRESHOLD MINIMUM COSTS OUT ──> OUT: JSON, what the runtime did
"""

from __future__ import annotations

import json
import runpy
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

from windtunnel.capture.pytorch.rank import run_rank
from windtunnel.capture.task import RankTask
from windtunnel.devices import find_device
from windtunnel.memory import Allocator
from windtunnel.memory.live_memory import LiveMemory
from windtunnel.remat.evict_and_recompute import Settings
from windtunnel.remat.pytorch.costs import Costs
from windtunnel.remat.pytorch.runtime import Runtime

__all__ = ["main"]

_CPU = torch.device("cpu")


def main() -> None:
    mode, script, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    if mode == "dry":
        _dry(script, rest[0])
    else:
        _live(script, int(rest[0]), int(rest[1]), Path(rest[2]), Path(rest[3]))


def _dry(script: str, folder: str) -> None:
    device = find_device("cpu")
    task = RankTask(
        script, (), False, device, device.allocator, "", 0, 1, 1, False, 1, None, False, folder, is_recording_saves=True
    )  # fmt: skip

    def make_counters(writer: Any, path: Path) -> LiveMemory:
        return LiveMemory(writer, path, lambda: Allocator.from_spec(task.allocator))

    outcome, _ = run_rank(task, make_counters)
    if outcome["status"] != "ok":
        raise SystemExit(f"the dry run of {script} failed: {outcome['error']}")


def _live(script: str, threshold: int, minimum: int, costs: Path, out: Path) -> None:
    warnings.filterwarnings("ignore", "windtunnel.dtr")
    given = json.loads(costs.read_text())["seconds"]
    runtime = Runtime(Settings(threshold=threshold, minimum_size=minimum), _CPU, Costs(_CPU, given))
    statistics = runtime.engine.statistics
    steps: list[dict[str, Any]] = []

    def end_step(*_: Any) -> None:
        steps.append(asdict(statistics))
        statistics.peak_live_bytes = 0

    register_optimizer_step_post_hook(end_step)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        runtime.start()
        runpy.run_path(script, run_name="__main__")
        runtime.stop()
    missing = sorted(set(runtime.costs.table) - set(given))
    out.write_text(json.dumps({"steps": steps, "peak": _peak(profiler), "missing": missing}))


def _peak(profiler: Any) -> int:
    """The most bytes in use at once, from torch's own profiler."""
    events = [each for each in profiler.profiler.kineto_results.events() if each.name() == "[memory]"]
    total = peak = 0
    for each in sorted(events, key=lambda each: each.start_ns()):
        total += each.nbytes()
        peak = max(peak, total)
    return peak


if __name__ == "__main__":
    main()
