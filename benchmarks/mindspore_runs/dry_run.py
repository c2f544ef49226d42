"""MindSpore scripts: windtunnel's figures next to those of MindSpore's own dry run, and a published run.

    python -m benchmarks.mindspore_runs.dry_run

Run with the interpreter that has MindSpore. Each script runs twice for every rank: with MindSpore's own dry run (loaded
through our stubs, nothing instrumented, operators overlapping as usual), and under `windtunnel run`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from windtunnel.capture.mindspore.cann.stub_cache import stubs_for
from windtunnel.frameworks import location_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "mindspore"
_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
_MIB = 1 << 20
_USED = re.compile(r"Used peak memory usage \(without fragments\): (\d+)M")
_ACTUAL = re.compile(r"Actual peak memory usage \(with fragments\): (\d+)M")


@dataclass(frozen=True)
class Case:
    """A script on a number of devices, and the ranks to look at."""

    name: str
    script: str
    arguments: tuple[str, ...]
    n_cards: int
    ranks: tuple[int, ...]
    published: tuple[int, int] | None = None  # MiB used and actual of the real run, rank 0


# The two published rows: Qwen2.5-7B, TP 2 x PP 2, sequence 10,240 on 4 x 64 GB, MindSpore 2.7.1.
CASES = (
    Case("MLP, PyNative", "mlp.py", (), 1, (0,)),
    Case("semi-auto parallel, graph", "semi_auto.py", (), 8, tuple(range(8))),
    Case("transformer, PyNative", "transformer.py", ("--layers", "2", "--vocab", "4096"), 2, (0, 1)),
    Case("transformer, graph", "transformer.py", ("--layers", "2", "--vocab", "4096", "--graph"), 2, (0, 1)),
    Case("Qwen2.5-7B", "qwen_stage.py", (), 4, (0, 2), (55405, 57400)),
    Case("Qwen2.5-7B, recompute", "qwen_stage.py", ("--recompute",), 4, (0, 2), (35073, 36174)),
)


def main() -> None:
    table = Table(
        "script", "rank", "MindSpore used / actual", "windtunnel used / actual", "in pages", "real run"
    )
    n_wrong = 0
    n_runs = sum(1 + len(case.ranks) for case in CASES)
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(*_COLUMNS, console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("", total=n_runs)
        for case in CASES:
            progress.update(bar, description=f"{case.name}: windtunnel, {len(case.ranks)} ranks")
            ours = _windtunnel(case, Path(folder))
            progress.advance(bar)
            for rank in case.ranks:
                progress.update(bar, description=f"{case.name}: MindSpore's own dry run, rank {rank}")
                used, actual = _mindspore(case, rank, Path(folder))
                progress.advance(bar)
                report = ours[rank]
                our_used, our_actual = (
                    report["peak_bytes"] // _MIB,
                    report["peak_with_fragments_bytes"] // _MIB,
                )
                n_wrong += abs(our_used - used) > 1
                real = (
                    f"{case.published[0]:,} / {case.published[1]:,}" if case.published and rank == 0 else ""
                )
                table.add_row(
                    case.name, str(rank), f"{used:,} / {actual:,}", f"{our_used:,} / {our_actual:,}",
                    f"{report['peak_in_pages_bytes'] // _MIB:,}", real,
                )  # fmt: skip
    Console(width=120).print(table)
    print("MiB. MindSpore's own figures with fragments differ by up to 1 % between runs: its threads race.")
    if n_wrong:
        sys.exit(f"{n_wrong} ranks have a different used peak than MindSpore's")


def _windtunnel(case: Case, folder: Path) -> dict[int, dict]:
    out = folder / "out"
    command = [
        sys.executable, "-m", "windtunnel.commands.main", "run", "--force", "--out", str(out), "--world-size",
        str(case.n_cards), "--ranks", ",".join(map(str, case.ranks)), str(EXAMPLES / case.script), *case.arguments,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode not in (0, 4):
        sys.exit(done.stdout + done.stderr)
    document = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return {rank["rank"]: rank for rank in document["ranks"]}


def _mindspore(case: Case, rank: int, folder: Path) -> tuple[int, int]:
    """What MindSpore itself prints."""
    home = location_of("mindspore")
    assert home is not None, "run this with the interpreter that has MindSpore"
    variables = {"MS_SIMULATION_LEVEL": "1", "RANK_SIZE": str(case.n_cards), "RANK_ID": str(rank)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / case.script), *case.arguments],
        cwd=folder,
        env=os.environ | stubs_for(home).environment() | variables,
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    used, actual = _USED.search(said), _ACTUAL.search(said)
    if used is None or actual is None:
        sys.exit(said[-2000:])
    return int(used[1]), int(actual[1])


if __name__ == "__main__":
    main()
