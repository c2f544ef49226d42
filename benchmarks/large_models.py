"""Do a 70 B and a 405 B model run at level 1 on a laptop? Time and memory of the simulating process itself."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

__all__ = ["LargeRun", "main", "run_large"]

_PROGRAM = str(Path(__file__).parent / "llama_step.py")


@dataclass(frozen=True)
class LargeRun:
    name: str
    parameters: float
    peak_gib: float
    rss_mb: float
    seconds: float


def run_large(name: str) -> LargeRun:
    """Simulate two steps of a Llama of this size on one (much too small) device."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "windtunnel.commands.main",
            "run",
            "--device",
            "h100",
            "--out",
            f"{folder}/out",
            _PROGRAM,
            name,
        ]
        started = time.perf_counter()
        output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        seconds = time.perf_counter() - started
        result = json.loads(next(s for s in output.splitlines() if "RESULT " in s).split("RESULT ", 1)[1])
        report = json.loads((Path(folder) / "out" / "report.json").read_text(encoding="utf-8"))
    return LargeRun(
        name, result["parameters"], report["ranks"][0]["peak_bytes"] / 2**30, result["rss_mb"], seconds
    )


def main() -> None:
    table = Table(title="Large models at level 1, two steps, one process", box=None)
    for column in ("model", "parameters", "predicted peak", "RSS of the simulation", "wall time"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name in ("70b", "405b"):
        r = run_large(name)
        table.add_row(
            f"Llama-3 {r.name}",
            f"{r.parameters / 1e9:.1f} B",
            f"{r.peak_gib:,.0f} GiB",
            f"{r.rss_mb:.0f} MB",
            f"{r.seconds:.0f} s",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
