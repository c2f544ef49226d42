"""Is a simulated rank exact? Multi-process programs are run for real under torchrun with gloo, and dry-run.

gloo_programs/*.py ──> torchrun, torch's profiler in every process (measure_gloo.py) ──┐
                  └──> windtunnel run --device cpu --world-size N --ranks all ───────┴──> peak of every rank
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

__all__ = ["CASES", "Case", "RankComparison", "compare_case", "main"]

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """A program, the number of processes, its arguments."""

    program: str
    world_size: int = 2
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " ".join((self.program, *self.arguments))

    @property
    def script(self) -> Path:
        return _HERE / "gloo_programs" / f"{self.program}.py"


CASES = (
    Case("ddp"),
    Case("zero1"),
    Case("fsdp1"),
    Case("fsdp1", 2, ("--strategy", "SHARD_GRAD_OP")),
    Case("fsdp2"),
    Case("fsdp2", 4),
    Case("fsdp2", 4, ("--bf16",)),
    Case("fsdp2", 3, ("--keep-gathered",)),
    Case("tensor_parallel"),
    Case("fsdp2_tp", 4),
    Case("pipeline", 2, ("--schedule", "GPipe")),
    Case("pipeline"),
    Case("pipeline", 4),
    Case("pipeline", 2, ("--schedule", "Interleaved1F1B")),
    Case("pipeline", 2, ("--schedule", "InterleavedZeroBubble")),
    Case("pipeline", 2, ("--schedule", "ZBVZeroBubble")),
    Case("expert_parallel"),
)


@dataclass(frozen=True)
class RankComparison:
    """One rank of one program: the most bytes live at once, as measured and as predicted."""

    rank: int
    measured_peak: int
    predicted_peak: int

    @property
    def error(self) -> float:
        return self.predicted_peak / self.measured_peak - 1


def compare_case(case: Case) -> list[RankComparison]:
    """Run one program both ways."""
    with tempfile.TemporaryDirectory() as folder:
        measured = _measure(case, Path(folder))
        predicted = _dry_run(case, Path(folder) / "out")
    return [RankComparison(rank, measured[rank], predicted[rank]) for rank in range(case.world_size)]


def _measure(case: Case, folder: Path) -> list[int]:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        f"--nproc-per-node={case.world_size}",
        *(str(_HERE / "measure_gloo.py"), str(folder), str(case.script), *case.arguments),
    ]
    _run(command)
    files = [folder / f"rank{rank}.json" for rank in range(case.world_size)]
    return [_peak(json.loads(file.read_text(encoding="utf-8"))) for file in files]


def _dry_run(case: Case, folder: Path) -> list[int]:
    command = [
        *(sys.executable, "-m", "windtunnel.commands.main", "run", "--device", "cpu", "--ranks", "all"),
        *("--world-size", str(case.world_size), "--out", str(folder), str(case.script), *case.arguments),
    ]
    _run(command)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return [rank["peak_bytes"] for rank in sorted(report["ranks"], key=lambda rank: rank["rank"])]


def _run(command: list[str]) -> None:
    # One thread per process: kernels allocate scratch memory per thread, and processes share the cores.
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def _peak(events: list[tuple[int, int]]) -> int:
    """The most bytes live at once; a free the profiler missed is recognised when the address is handed out again."""
    live: dict[int, int] = {}
    total = highest = 0
    for address, n_bytes in events:
        total -= live.pop(address, 0)
        if n_bytes > 0:
            live[address] = n_bytes
            total += n_bytes
            highest = max(highest, total)
    return highest


def main(names: list[str] | None = None) -> None:
    table = Table(title="simulated ranks against real processes (gloo)", box=None)
    for column in ("program", "processes", "rank", "measured peak", "predicted peak", "error"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for case in CASES:
        if names and case.program not in names:
            continue
        for found in compare_case(case):
            is_first = found.rank == 0
            table.add_row(case.name if is_first else "", str(case.world_size) if is_first else "", str(found.rank),
                          f"{found.measured_peak:,}", f"{found.predicted_peak:,}", f"{found.error:+.3%}")  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
