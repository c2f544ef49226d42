"""How long does simulating one training step take, compared with torch's own tools? Qwen2.5-7B, sequence 4096, one run.

windtunnel level 1, recording on   |   FakeTensorMode   |   FakeTensorMode + MemTracker
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

__all__ = ["Vehicle", "main", "race"]

_PROGRAM = str(Path(__file__).parent / "qwen_step.py")


@dataclass(frozen=True)
class Vehicle:
    """One way to simulate the step."""

    name: str
    seconds: float  # CPU seconds per step, median of the steps after the first
    first_seconds: float
    rss_mb: float


def race(with_memtracker: bool = True) -> list[Vehicle]:
    """Run the tools one after the other on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        ours = [
            sys.executable,
            "-m",
            "windtunnel.commands.main",
            "run",
            "--out",
            f"{folder}/out",
            _PROGRAM,
            "cuda",
            "8",
        ]
        found = [_measure("windtunnel, level 1", ours)]
    found.append(_measure("FakeTensorMode", [sys.executable, _PROGRAM, "fake", "5"]))
    if with_memtracker:
        found.append(_measure("FakeTensorMode + MemTracker", [sys.executable, _PROGRAM, "memtracker", "3"]))
    return found


def _measure(name: str, command: list[str]) -> Vehicle:
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    line = next(line for line in output.splitlines() if "RESULT " in line)
    result = json.loads(line.split("RESULT ", 1)[1])
    return Vehicle(name, statistics.median(result["seconds"][1:]), result["seconds"][0], result["rss_mb"])


def main() -> None:
    vehicles = race()
    table = Table(title="CPU seconds to simulate one step of Qwen2.5-7B (28 layers, sequence 4096)", box=None)
    for column in ("vehicle", "first step", "later steps", "against ours", "peak RSS"):
        table.add_column(column, justify="left" if column == "vehicle" else "right")
    for v in vehicles:
        table.add_row(v.name, f"{v.first_seconds:.2f} s", f"{v.seconds:.3f} s", f"{v.seconds / vehicles[0].seconds:.1f}x",
                      f"{v.rss_mb:.0f} MB")  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
