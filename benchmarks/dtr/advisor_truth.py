"""Is the advisor's word on checkpointing true? Predicted from a dry run, and measured in real training on this CPU.

    model ──> dry run, saves recorded ──> blocks found, CheckpointPlan played ──┐
         └──> trained with torch.utils.checkpoint around every block ──────────┴──> peak, time

Peaks are live bytes in the last of three steps: of the profiler's memory events there, of the played recording here.
Times are processor seconds of a step over those without checkpointing. They are predicted twice: from the roofline
of the device, and from seconds measured operator by operator.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.dtr.models import GPT, ResNet50
from windtunnel.capture.pytorch.rank import run_rank
from windtunnel.capture.task import RankTask
from windtunnel.devices import find_device
from windtunnel.events.file import read_recording
from windtunnel.memory import Allocator
from windtunnel.memory.live_memory import LiveMemory
from windtunnel.remat.advisor.account import play
from windtunnel.remat.advisor.blocks import find_blocks, name_blocks
from windtunnel.remat.advisor.checkpointing import CheckpointPlan
from windtunnel.remat.simulated.program import read_program
from windtunnel.remat.simulated.program_costs import ProgramCosts
from windtunnel.timing.cost import CostTable, cost_key
from windtunnel.units import format_bytes

__all__ = ["Row", "compare", "main"]

PROGRAMS = ("gpt", "resnet50")
_PEAK_STEPS = 3
_TIMED_STEPS = 8


@dataclass(frozen=True)
class Row:
    """One program, with nothing or every block checkpointed."""

    program: str
    blocks: str
    measured_peak: int
    predicted_peak: int
    measured_share: float  # of the time without checkpointing
    roofline_share: float
    table_share: float  # with measured operators

    @property
    def peak_error(self) -> float:
        return self.predicted_peak / self.measured_peak - 1


def compare(program: str) -> tuple[Row, Row]:
    """The program as it is, and with every block checkpointed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = _child("measure", program, "plain", folder)
        wrapped = _child("measure", program, "wrapped", folder)
        costs = _child("costs", program, "plain", folder)
        _child("record", program, "plain", folder)
        recording = read_recording(next(folder.rglob("recording.arrows")))
    played = read_program(recording)
    blocks = find_blocks(played)
    device = find_device("cpu")
    peaks, shares = [], []
    for table in (None, CostTable(costs["seconds"])):
        seconds = ProgramCosts(played, device, table)
        nothing = play(played, seconds)
        every = play(played, seconds, CheckpointPlan(played, seconds, blocks))
        peaks = [nothing.peak_bytes, every.peak_bytes]
        shares.append(every.seconds / nothing.seconds)
    share = wrapped["seconds"] / plain["seconds"]
    return (
        Row(program, "none", plain["peak"], peaks[0], 1.0, 1.0, 1.0),
        Row(program, name_blocks(blocks), wrapped["peak"], peaks[1], share, *shares),
    )


def main() -> None:
    table = Table(title="torch.utils.checkpoint around every block, predicted and measured", box=None)
    table.add_column("program")
    table.add_column("checkpointed")
    for column in ("measured peak", "predicted", "error", "measured time", "roofline", "measured operators"):
        table.add_column(column, justify="right")
    for program in PROGRAMS:
        for row in compare(program):
            table.add_row(
                row.program, row.blocks, format_bytes(row.measured_peak), format_bytes(row.predicted_peak),
                f"{row.peak_error:+.3%}", f"x{row.measured_share:.3f}", f"x{row.roofline_share:.3f}",
                f"x{row.table_share:.3f}",
            )  # fmt: skip
    Console(width=150).print(table)


# -- in a process of its own --------------------------------------------------------------------------------------


def _child(task: str, program: str, how: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.dtr.advisor_truth", task, program, how, str(folder)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(found.stdout.splitlines()[-1])


def _work(task: str, program: str, how: str, folder: str) -> dict[str, Any]:
    torch.set_num_threads(1)

    def train(n_steps: int) -> None:
        _train(program, n_steps, how == "wrapped")

    if task == "record":
        return _record(train, folder)
    if task == "costs":
        with _Stopwatch() as watch:
            train(_PEAK_STEPS)
        return {"seconds": watch.seconds}
    return {"peak": _peak(train), "seconds": _seconds(train)}


def _train(program: str, n_steps: int, is_checkpointed: bool) -> None:
    torch.manual_seed(0)
    model: Any
    if program == "gpt":
        model = GPT(width=256, depth=6, length=256, vocabulary=1000)
        batch = torch.randint(0, 1000, (8, 256)), torch.randint(0, 1000, (8, 256))
    else:
        model = ResNet50()
        batch = torch.randn(16, 3, 64, 64), torch.randint(0, 1000, (16,))
    model.trunk.segments = len(model.trunk.blocks) if is_checkpointed else 0
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    for _ in range(n_steps):
        model(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def _peak(train: Callable[[int], None]) -> int:
    """The most bytes in use in the last step."""
    ends: list[int] = []
    hook = register_optimizer_step_post_hook(lambda *_: ends.append(time.time_ns()))
    with torch.profiler.profile(
        profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]
    ) as profiler:
        train(_PEAK_STEPS)
    hook.remove()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = highest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        if ends[-2] < event.start_ns() <= ends[-1]:
            highest = max(highest, live)
    return highest


def _seconds(train: Callable[[int], None]) -> float:
    """The least a step took."""
    ends: list[float] = []
    hook = register_optimizer_step_post_hook(lambda *_: ends.append(time.process_time()))
    train(_TIMED_STEPS)
    hook.remove()
    return min(after - before for before, after in pairwise(ends))


class _Stopwatch(TorchDispatchMode):
    """The least time each operator took, by what the cost model files it under."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [
            t
            for a in args
            for t in (a if isinstance(a, (list, tuple)) else (a,))
            if isinstance(t, torch.Tensor)
        ]
        key = cost_key(str(func), (t.shape for t in tensors))
        start = time.perf_counter()
        out = func(*args, **(kwargs or {}))
        self.seconds[key] = min(self.seconds.get(key, 1e9), time.perf_counter() - start)
        return out


def _record(train: Callable[[int], None], folder: str) -> dict[str, Any]:
    profile = find_device("cpu")
    task = RankTask(
        "train.py", (), False, profile, profile.allocator, "", 0, 1, 1, False, 1, _PEAK_STEPS, False, folder, True
    )  # fmt: skip

    def make_counters(writer: Any, path: Path) -> LiveMemory:
        return LiveMemory(writer, path, lambda: Allocator.from_spec(task.allocator))

    run_rank(task, make_counters, lambda: train(_PEAK_STEPS))
    return {}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(_work(*sys.argv[1:])))
    else:
        main()
