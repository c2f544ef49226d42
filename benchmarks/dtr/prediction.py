"""Does `windtunnel remat` predict what `windtunnel.dtr` does? Every program, dry once and for real at each threshold.

    cpu_programs/*.py ──> one dry run ──> simulate at five thresholds ──┐
                     └──> real training on the CPU at the same five ───┴──> evictions, rematerialisations, peaks

Both are given the same operator costs, so that only the prediction of behaviour is judged, not of speed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from windtunnel.devices import find_device
from windtunnel.events.file import read_recording
from windtunnel.remat.evict_and_recompute import Settings
from windtunnel.remat.simulated.outcome import Outcome
from windtunnel.remat.simulated.program import Call, Program, read_program
from windtunnel.remat.simulated.program_costs import ProgramCosts
from windtunnel.remat.simulated.simulate import floor_bytes, simulate
from windtunnel.timing.cost import CostTable

__all__ = ["SHARES", "Comparison", "compare_program", "main"]

SHARES = (0.8, 0.6, 0.4, 0.25, 0.1)  # of the way from what cannot be evicted to the peak
_MODELS = ("gpt", "hf_bert", "hf_qwen2", "resnet50")  # unless others are named
_HERE = Path(__file__).parents[1]
_MINIMUM = 1 << 14  # bytes: the programs are small


@dataclass(frozen=True)
class Comparison:
    """One program at one threshold, over all its steps."""

    name: str
    share: float
    threshold: int
    predicted: Outcome
    evictions: int  # measured, as the rest
    rematerialisations: int
    peak_seen_bytes: int  # the runtime's own statistics
    peak_bytes: int  # torch's profiler

    @property
    def eviction_error(self) -> float:
        return _error(self.predicted.statistics.evictions, self.evictions)

    @property
    def rematerialisation_error(self) -> float:
        return _error(self.predicted.statistics.rematerialisations, self.rematerialisations)

    @property
    def peak_error(self) -> float:
        return _error(max(step.peak_live_bytes for step in self.predicted.steps), self.peak_bytes)

    @property
    def seen_peak_error(self) -> float:
        return _error(self.predicted.statistics.peak_live_bytes, self.peak_seen_bytes)


def compare_program(script: Path, shares: Iterable[float] = SHARES) -> list[Comparison]:
    """Dry once, for real at each threshold."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run("dry", script, folder)
        program = read_program(read_recording(folder / "recording.arrows"))
        table = _costs_of(program)
        (folder / "costs.json").write_text(table.to_json())
        costs = ProgramCosts(program, find_device("cpu"), table)
        floor, peak = floor_bytes(program, costs, Settings(minimum_size=_MINIMUM), is_cuda=False)
        found = []
        for share in shares:
            threshold = int(floor + share * (peak - floor))
            settings = Settings(threshold=threshold, minimum_size=_MINIMUM)
            predicted = simulate(program, costs, settings, is_cuda=False)
            out = folder / "live.json"
            _run("live", script, threshold, _MINIMUM, folder / "costs.json", out)
            live = json.loads(out.read_text())
            last = live["steps"][-1]
            found.append(
                Comparison(
                    script.stem, share, threshold, predicted, last["evictions"], last["rematerialisations"],
                    max(step["peak_live_bytes"] for step in live["steps"]), live["peak"],
                )
            )  # fmt: skip
    return found


def main() -> None:
    scripts = [_HERE / "cpu_programs" / f"{name}.py" for name in sys.argv[1:] or _MODELS]
    table = Table("program", "threshold", "evictions", "computed again", "peak MiB", "worst error", box=None)
    worst: list[float] = []
    for script in scripts:
        for each in compare_program(script):
            errors = [
                each.eviction_error,
                each.rematerialisation_error,
                each.peak_error,
                each.seen_peak_error,
            ]
            worst.append(max(map(abs, errors)))
            mine, seen = each.predicted.statistics, max(s.peak_live_bytes for s in each.predicted.steps)
            table.add_row(
                each.name, f"{each.share:.0%}", f"{mine.evictions} / {each.evictions}",
                f"{mine.rematerialisations} / {each.rematerialisations}",
                f"{seen / 2**20:.1f} / {each.peak_bytes / 2**20:.1f}", f"{worst[-1]:.1%}",
            )  # fmt: skip
    Console().print("predicted / measured; the threshold is a share of the way from the floor to the peak")
    Console().print(table)
    exact = sum(error < 0.005 for error in worst)
    Console().print(f"{exact} of {len(worst)} within half a percent, the worst off by {max(worst):.1%}")


def _costs_of(program: Program) -> CostTable:
    roofline = ProgramCosts(program, find_device("cpu"))
    calls = [action for action in program.actions if isinstance(action, Call)]
    return CostTable({roofline.key(call): roofline.call(call) for call in calls})


def _run(mode: str, script: Path, *arguments: object) -> None:
    command = [sys.executable, "-m", "benchmarks.dtr.measure", mode, str(script), *map(str, arguments)]
    done = subprocess.run(command, cwd=_HERE.parent, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{script.stem}, {mode}: {done.stderr[-2000:]}")


def _error(predicted: int, measured: int) -> float:
    return 0.0 if predicted == measured else predicted / measured - 1 if measured else float("inf")


if __name__ == "__main__":
    main()
