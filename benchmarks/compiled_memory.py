"""torch.compile on the CPU: eight small programs, dry-run against a real run of Inductor.

compiled_programs/train.py ──> real run, torch's profiler (--measure) ─────┐
                          └──> windtunnel run --device cpu ──────────────┴──> peak of the third step, graphs, breaks

python -m benchmarks.compiled_memory [PROGRAM ...] [--budget 0.5]
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from windtunnel.events.file import read_recording
from windtunnel.events.model import Kind, Recording

__all__ = ["PROGRAMS", "Comparison", "compare", "main", "peak_of_last_step"]

_SCRIPT = Path(__file__).parent / "compiled_programs" / "train.py"
_STEPS = 3
PROGRAMS = ("mlp", "mlp_amp", "gpt", "gpt_dropout", "gpt_amp", "gpt_checkpoint", "llama", "llama_amp")


@dataclass(frozen=True)
class Comparison:
    """One program: bytes above what was live when the last step began, and what the compiler counted."""

    name: str
    measured: dict[str, Any]
    predicted: dict[str, Any]

    @property
    def error(self) -> float:
        return self.predicted["peak"] / self.measured["peak"] - 1

    @property
    def are_counts_equal(self) -> bool:
        return all(
            self.measured[name] == self.predicted[name] for name in ("graphs", "breaks", "recompilations")
        )


def compare(name: str, *options: str) -> Comparison:
    """Run one program both ways."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "measured.json", Path(folder) / "out"
        arguments = [str(_SCRIPT), name, *options]
        _run([__file__, "--measure", str(file), *arguments])
        started = time.perf_counter()
        _run(["-m", "windtunnel.commands.main", "run", "--device", "cpu", "--out", str(out), *arguments])
        recording = read_recording(out / "rank0" / "recording.arrows")
        predicted = {"peak": peak_of_last_step(recording), "seconds": time.perf_counter() - started}
        compiler = recording.footer["compiled"].get("compiler", {})
        predicted |= {
            "graphs": compiler.get("n_graphs"),
            "breaks": compiler.get("n_graph_breaks"),
            "recompilations": compiler.get("n_recompilations"),
        }
        return Comparison(name, json.loads(file.read_text(encoding="utf-8")), predicted)


def _run(command: list[str]) -> None:
    subprocess.run([sys.executable, *command], check=True, capture_output=True)


def peak_of_last_step(recording: Recording) -> int:
    """The most bytes of what the last step allocated.

    What it frees of earlier steps (gradients, at its beginning) does not count: the profiler, which starts there, does
    not know those blocks either.
    """
    columns = [recording.columns[name].tolist() for name in ("kind", "subject", "value")]
    sizes: dict[int, int] = {}
    step = live = highest = 0
    for kind, subject, value in zip(*columns, strict=True):
        if kind == Kind.STEP:
            step += 1
            if step == _STEPS:
                return highest
            live = highest = 0
            sizes.clear()
        elif kind == Kind.ALLOC:
            sizes[subject] = value
            live += value
            highest = max(highest, live)
        elif kind == Kind.FREE:
            live -= sizes.pop(subject, 0)
    raise ValueError(f"the program made {step} steps, not {_STEPS}")


def measure(target: str, script: str, *arguments: str) -> None:
    """Run the script for real, with torch's profiler from the end of the second step to that of the third."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    torch.set_num_threads(1)
    profiler = torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU])
    steps = []

    def note(*_: object) -> None:
        steps.append(None)
        if len(steps) == _STEPS - 1:
            profiler.start()
        elif len(steps) == _STEPS:
            profiler.stop()

    register_optimizer_step_post_hook(note)
    sys.argv = [script, *arguments]
    started = time.perf_counter()
    runpy.run_path(script, run_name="__main__")
    seconds = time.perf_counter() - started
    events = profiler.profiler.kineto_results.events()
    memory = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    live = highest = 0
    for _, n_bytes in memory:
        live += n_bytes
        highest = max(highest, live)
    from torch._dynamo.utils import counters, get_compilation_metrics

    found = {
        "peak": highest,
        "graphs": counters["stats"].get("unique_graphs", 0),
        "breaks": sum(counters["graph_break"].values()),
        "recompilations": sum(
            bool(getattr(each, "recompile_reason", None)) for each in get_compilation_metrics()
        ),
        "seconds": seconds,
    }
    Path(target).write_text(json.dumps(found), encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    arguments = list(arguments or [])
    at = next((i for i, each in enumerate(arguments) if each.startswith("--")), len(arguments))
    names, options = arguments[:at], arguments[at:]
    table = Table(title="torch.compile with --device cpu against real Inductor", box=None)
    for column in (
        "program",
        "measured MB",
        "predicted MB",
        "error",
        "graphs",
        "breaks",
        "recompilations",
        "real s",
        "dry s",
    ):
        table.add_column(column, justify="left" if column == "program" else "right")
    for name in names or PROGRAMS:
        found = compare(name, *options)
        real, dry = found.measured, found.predicted
        counts = [f"{real[c]} / {dry[c]}" for c in ("graphs", "breaks", "recompilations")]
        table.add_row(name, f"{real['peak'] / 1e6:.2f}", f"{dry['peak'] / 1e6:.2f}", f"{found.error:+.1%}", *counts,
                      f"{real['seconds']:.0f}", f"{dry['seconds']:.0f}")  # fmt: skip
    Console(width=150).print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(*sys.argv[2:])
    else:
        main(sys.argv[1:])
