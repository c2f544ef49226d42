"""Is `--device cpu` exact? Every program is run for real and dry-run, and compared allocation by allocation.

cpu_programs/*.py ──> real run, torch's profiler (measure_cpu.py) ──┐
                 └──> windtunnel run --device cpu ────────────────┴──> peak difference, sequence agreement
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from windtunnel.events.file import read_recording
from windtunnel.events.model import Kind, Recording, Role

__all__ = ["Comparison", "compare_program", "main", "missing_package", "programs"]

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Comparison:
    """One program: what was measured, what was predicted."""

    name: str
    measured_peak: int
    predicted_peak: int
    agreement: float  # share of allocations, per step, that agree in size and order
    n_allocations: int
    differences: tuple[str, ...]
    scratch_kernels: tuple[str, ...]  # kernels that allocate beyond their results, measured on the CPU itself

    @property
    def peak_error(self) -> float:
        return self.predicted_peak / self.measured_peak - 1


def programs() -> list[Path]:
    return sorted((_HERE / "cpu_programs").glob("*.py"))


def missing_package(script: Path) -> str | None:
    """A package that the program imports and that is not installed: then it is skipped."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            name = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
            package = (name or "").partition(".")[0]
            if package and importlib.util.find_spec(package) is None:
                return package
    return None


def compare_program(script: Path) -> Comparison:
    """Run one program both ways."""
    with tempfile.TemporaryDirectory() as folder:
        measured = _measure(script, Path(folder) / "measured.json")
        recording = _dry_run(script, Path(folder) / "out")
    predicted = _steps(recording)
    agreed, total, differences = 0, 0, []
    for step, (real, dry) in enumerate(zip(measured, predicted, strict=False)):
        real_sizes, dry_sizes = [n for n in real if n > 0], [n for n in dry if n > 0]
        matcher = difflib.SequenceMatcher(None, real_sizes, dry_sizes, autojunk=False)
        agreed += sum(block.size for block in matcher.get_matching_blocks())
        total += max(len(real_sizes), len(dry_sizes))
        differences += _differences(step, matcher, real_sizes, dry_sizes)
    return Comparison(
        script.stem,
        _peak(measured),
        _peak(predicted),
        agreed / total,
        total,
        tuple(differences),
        _scratch(recording),
    )


def _differences(
    step: int, matcher: difflib.SequenceMatcher[int], real: list[int], dry: list[int]
) -> list[str]:
    return [
        f"step {step} at {i1}: real {real[i1:i2][:6]} dry {dry[j1:j2][:6]} after {real[max(0, i1 - 2) : i1]}"
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    ]


def _measure(script: Path, target: Path) -> list[list[int]]:
    command = [sys.executable, str(_HERE / "measure_cpu.py"), str(script), str(target)]
    subprocess.run(command, check=True, capture_output=True)
    return json.loads(target.read_text(encoding="utf-8"))["steps"]


def _dry_run(script: Path, folder: Path) -> Recording:
    command = [
        sys.executable,
        "-m",
        "windtunnel.commands.main",
        "run",
        "--device",
        "cpu",
        "--out",
        str(folder),
        str(script),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return read_recording(folder / "rank0" / "recording.arrows")


def _steps(recording: Recording) -> list[list[int]]:
    steps: list[list[int]] = [[]]
    sizes: dict[int, int] = {}
    columns = [recording.columns[name].tolist() for name in ("kind", "subject", "value")]
    for kind, subject, value in zip(*columns, strict=True):
        if kind == Kind.ALLOC:
            sizes[subject] = value
            steps[-1].append(value)
        elif kind == Kind.FREE:
            steps[-1].append(-sizes.pop(subject))
        elif kind == Kind.STEP:
            steps.append([])
    return steps


def _scratch(recording: Recording) -> tuple[str, ...]:
    """Operators that took more than a few bytes of scratch, most first."""
    columns = recording.columns
    is_op = columns["kind"] == Kind.OP
    signature = dict(zip(columns["subject"][is_op].tolist(), columns["value"][is_op].tolist(), strict=True))
    is_scratch = (
        (columns["kind"] == Kind.ALLOC) & (columns["role"] == Role.WORKSPACE) & (columns["value"] > 64)
    )
    total: dict[str, int] = {}
    for op, n_bytes in zip(
        columns["extra"][is_scratch].tolist(), columns["value"][is_scratch].tolist(), strict=True
    ):
        if op in signature:
            name = recording.signatures[signature[op]].name.removeprefix("aten.").removesuffix(".default")
            total[name] = total.get(name, 0) + n_bytes
    return tuple(sorted(total, key=lambda name: -total[name]))


def _peak(steps: list[list[int]]) -> int:
    live = highest = 0
    for step in steps:
        for n_bytes in step:
            live += n_bytes
            highest = max(highest, live)
    return highest


def main(names: list[str] | None = None) -> None:
    table = Table(title="--device cpu against torch's profiler", box=None)
    for column in (
        "program",
        "measured peak",
        "predicted peak",
        "error",
        "allocations",
        "sequence",
        "kernels with hidden scratch",
    ):
        table.add_column(
            column, justify="left" if column[0] in "pk" and column != "predicted peak" else "right"
        )
    console = Console(width=150)
    for script in programs():
        if names and script.stem not in names:
            continue
        package = missing_package(script)
        if package is not None:
            console.print(f"{script.stem} was skipped: {package} is not installed")
            continue
        found = compare_program(script)
        table.add_row(found.name, f"{found.measured_peak:,}", f"{found.predicted_peak:,}", f"{found.peak_error:+.4%}",
                      str(found.n_allocations), f"{found.agreement:.3%}", ", ".join(found.scratch_kernels))  # fmt: skip
        if names:
            console.print("\n".join(found.differences[:60]), markup=False)
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
