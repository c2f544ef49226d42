"""Does `--level 3 --device cpu` predict how long a step takes on this machine?

    cpu_programs/*.py ──> real steps in a fresh process (local_time_steps.py) ──┐ in turns, so that
                     └──> dry run ──> operators timed here, no cache ──────────┴─> both see the same noise

python -m benchmarks.local_time [--rounds N] [--clock thread] [program ...]

`--clock thread` compares CPU time of a single thread, for a machine with other load.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from windtunnel.events.file import read_recording
from windtunnel.events.model import Recording
from windtunnel.timing.measured.on_this_machine import measure_here
from windtunnel.timing.measured.steps import steady_rows
from windtunnel.timing.row_costs import row_costs

__all__ = ["Comparison", "compare", "main"]

_HERE = Path(__file__).parent
# Programs whose step takes ten milliseconds or more: below that, starting the measurement dominates.
PROGRAMS = ("resnet50", "gpt", "hf_qwen2", "hf_bert", "lstm", "mlp", "cnn_batchnorm", "checkpointing")
_STEPS_A_ROUND = 8


@dataclass(frozen=True)
class Comparison:
    name: str
    real_s: float
    predicted_s: float
    host_share: float  # of the prediction
    measuring_s: float
    n_operators: int  # measured
    n_unmeasured: int
    range_s: tuple[float, float]  # of the predictions of all rounds

    @property
    def error(self) -> float:
        return self.predicted_s / self.real_s - 1

    @property
    def measuring_steps(self) -> float:
        return self.measuring_s / self.real_s


@dataclass(frozen=True)
class _Prediction:
    seconds: float
    host_seconds: float
    measuring_s: float
    n_operators: int
    n_unmeasured: int


def compare(name: str, rounds: int, clock: str) -> Comparison:
    script = _HERE / "cpu_programs" / f"{name}.py"
    with tempfile.TemporaryDirectory() as folder:
        recording = _dry_run(script, Path(folder))
    steps: list[float] = []
    predictions: list[_Prediction] = []
    for _ in range(rounds):
        steps += _real(script, clock)
        predictions.append(_predict(recording, clock))
    middle = sorted(predictions, key=lambda each: each.seconds)[len(predictions) // 2]
    return Comparison(
        name,
        median(steps),
        middle.seconds,
        middle.host_seconds / middle.seconds,
        median(each.measuring_s for each in predictions),
        middle.n_operators,
        middle.n_unmeasured,
        (min(each.seconds for each in predictions), max(each.seconds for each in predictions)),
    )


def _dry_run(script: Path, folder: Path) -> Recording:
    command = [sys.executable, "-m", "windtunnel.commands.main", "run", "--level", "1", "--device", "cpu"]
    command += ["--steps", "3", "--out", str(folder / "out"), str(script)]
    subprocess.run(command, check=True, capture_output=True)
    return read_recording(folder / "out" / "rank0" / "recording.arrows")


def _real(script: Path, clock: str) -> list[float]:
    command = [sys.executable, str(_HERE / "local_time_steps.py"), str(script), str(_STEPS_A_ROUND), clock]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def _predict(recording: Recording, clock: str) -> _Prediction:
    with tempfile.TemporaryDirectory() as folder:  # an empty cache
        costs = measure_here(
            [recording], cache=Path(folder), clock=clock, threads=1 if clock == "thread" else None
        )
    first, last = steady_rows(recording)
    rows = row_costs(recording, costs)
    kernels, host = rows.seconds[first:last].sum(), rows.host_seconds[first:last].sum()
    n_unmeasured = sum(n for n, _ in costs.unmeasured().values())
    return _Prediction(
        float(kernels + host),
        float(host),
        costs.measuring_seconds,
        len(costs.entries) - n_unmeasured,
        n_unmeasured,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local_time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=("wall", "thread"), default="wall")
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    options = parser.parse_args(arguments or [])
    console = Console(width=150)
    found = []
    for name in options.programs:
        console.print(f"{name} ...", style="dim")
        found.append(compare(name, options.rounds, options.clock))
    console.print(_table(found, options.clock))
    errors = [abs(each.error) for each in found]
    most = max(each.measuring_steps for each in found)
    console.print(
        f"median error {median(errors):.1%}, worst {max(errors):.1%};"
        f" measuring took {median(e.measuring_steps for e in found):.1f} real steps, at most {most:.1f}"
    )


def _table(found: list[Comparison], clock: str) -> Table:
    what = "wall time" if clock == "wall" else "CPU time, one thread"
    table = Table(title=f"a step on this CPU, predicted from its operators ({what})", box=None)
    table.add_column("program")
    for column in (
        "real",
        "predicted",
        "error",
        "rounds between",
        "of it host",
        "operators",
        "measuring",
        "in steps",
    ):
        table.add_column(column, justify="right")
    for each in found:
        unmeasured = f" + {each.n_unmeasured} bounded" if each.n_unmeasured else ""
        table.add_row(
            each.name, _ms(each.real_s), _ms(each.predicted_s), f"{each.error:+.1%}",
            f"{_ms(each.range_s[0])} .. {_ms(each.range_s[1])}", f"{each.host_share:.1%}",
            f"{each.n_operators}{unmeasured}", _ms(each.measuring_s), f"{each.measuring_steps:.1f}",
        )  # fmt: skip
    return table


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


if __name__ == "__main__":
    main(sys.argv[1:])
