"""What collecting costs, compared with msProbe: added CPU time per step, added peak memory, cost of one call, cost when off.

    python -m benchmarks.probe.race [PYTHON WITH MSPROBE] [--quick]

Both tools run the same training programs with one thread, each cell in a separate process, alternating; a cell is the
minimum of its rounds, because noise only adds. `make msprobe` creates the other Python.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.probe.models import NAMES

__all__ = ["main"]

_SCRIPT = Path(__file__).with_name("measure.py")
_LEVELS = ("L0", "L1", "mix")
_TASKS = (("statistics", "statistics", 1 / 3), ("statistics", "md5", 1 / 3), ("tensor", "statistics", 1 / 2))
_ROUNDS = {"statistics": 5, "tensor": 2, "off": 10}
_MIB = 1 << 20


def main(other: str | None = None, is_quick: bool = False) -> int:
    """Print the tables; return 1 if a limit is missed."""
    console = Console(width=118)
    n_missed = 0
    table = Table(title="Collecting: CPU time added to a training step", title_justify="left")
    for column in (
        "model",
        "level",
        "collected",
        "bare ms",
        "windtunnel ms",
        "msProbe ms",
        "ratio",
        "limit",
        "peak MiB",
    ):
        table.add_column(column, justify="left" if column in ("model", "level", "collected") else "right")
    for model in NAMES[:1] if is_quick else NAMES:
        for level in _LEVELS:
            for task, summary, limit in _TASKS:
                console.print(f"{model} {level} {task} {summary} ...", style="dim", highlight=False)
                ours, theirs = _cell(other, model, level, task, summary)
                ratio = _added(ours) / _added(theirs) if theirs else None
                n_missed += ratio is not None and ratio > limit
                table.add_row(model, level, f"{task}, {summary}", *_figures(ours, theirs, ratio, limit))
    console.print(table)
    console.print(_calls(other))
    console.print(_off())
    return 1 if n_missed else 0


def _cell(other: str | None, model: str, level: str, task: str, summary: str) -> tuple[dict, dict | None]:
    """Two processes of each tool, alternating; the better one of each."""
    ours, theirs = [], []
    for _ in range(2):
        ours.append(_run(sys.executable, "windtunnel", model, level, task, summary))
        if other:
            theirs.append(_run(other, "msprobe", model, level, task, summary))
    return min(ours, key=_added), min(theirs, key=_added) if theirs else None


def _added(found: dict) -> float:
    return found["collected"] - found["bare"]


def _figures(ours: dict, theirs: dict | None, ratio: float | None, limit: float) -> list[str]:
    peaks = f"+{ours['added_peak'] / _MIB:.0f}" + (f" / +{theirs['added_peak'] / _MIB:.0f}" if theirs else "")
    return [
        f"{ours['bare'] * 1e3:.1f}",
        f"+{_added(ours) * 1e3:.1f}",
        f"+{_added(theirs) * 1e3:.1f}" if theirs else "",
        f"{ratio:.2f}" if ratio is not None else "",
        f"{limit:.2f}",
        peaks,
    ]


def _calls(other: str | None) -> Table:
    table = Table(title="One tiny API call (relu of 8 numbers), us of CPU", title_justify="left")
    for column in ("tool", "2,000 calls per step", "8,000", "16,000"):
        table.add_column(column)
    for python, tool in ((sys.executable, "windtunnel"), *([(other, "msprobe")] if other else [])):
        found = _run(python, tool, "calls", "L1", "statistics", "statistics")
        table.add_row(tool, *(f"{value * 1e6:.0f}" for value in found.values()))
    return table


def _off() -> Table:
    table = Table(title="Installed, but no step collected", title_justify="left")
    for column in ("model", "bare ms", "with ms"):
        table.add_column(column)
    for model in NAMES:
        found = _run(sys.executable, "windtunnel", model, "mix", "off", "statistics")
        table.add_row(model, f"{found['bare'] * 1e3:.2f}", f"{found['collected'] * 1e3:.2f}")
    return table


def _run(python: str, tool: str, model: str, level: str, task: str, summary: str) -> dict:
    command = [python, "-W", "ignore", str(_SCRIPT), tool, model, level, task, summary, str(_ROUNDS[task])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise SystemExit(f"{tool} failed on {model} {level} {task}: {done.stderr[-800:]}")
    return json.loads(lines[-1])


if __name__ == "__main__":
    others = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    sys.exit(main(others[0] if others else None, "--quick" in sys.argv))
