"""Published measurements as runs that can be repeated here: which program, which arguments, which device, which figure.

    ../shared/data/published ──> rows ──> PublishedRun (a command for `windtunnel run`), or the reason why there is none
                                     └──> `python -m benchmarks.published.runs --memory`: predicted next to published peaks
                                          (--compiled: only those of programs that torch.compile)

The programs are in benchmarks/published_programs: plain training scripts for what each source trained. Nothing is
fitted to a row: arguments come from the row, or, if it does not say, from the source's own repository at that date.
Megatron's rows are handled by benchmarks.published.megatron.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.published.row import (
    MEMORY_METRICS,
    NotRunnable,
    PublishedRun,
    Row,
    published_rows,
)
from benchmarks.published.single import litgpt_run, nanogpt_run, torchtune_run, transformers_run
from benchmarks.published.sources import mosaic_run, titan_run

__all__ = ["PublishedRun", "predict_memory", "published_runs", "why_not"]

_SOURCES: tuple[tuple[str, Callable[[Row], PublishedRun]], ...] = (
    ("MosaicML llm-foundry", mosaic_run),
    ("torchtitan", titan_run),
    ("torchao training benchmarks", titan_run),
    ("torchao float8nocompile", titan_run),
    ("litgpt tables", litgpt_run),
    ("torchtune", torchtune_run),
    ("nanoGPT", nanogpt_run),
    ("HF transformers docs", transformers_run),
)
_LONGEST_S = 600


def published_runs(rows: Iterable[Row] | None = None) -> Iterator[PublishedRun]:
    """Every published row that can be run here."""
    for row in published_rows() if rows is None else rows:
        answer = _answer(row)
        if isinstance(answer, PublishedRun):
            yield answer


def why_not(rows: Iterable[Row] | None = None) -> Iterator[tuple[Row, str]]:
    """Every row of these sources that cannot be run, with the reason."""
    for row in published_rows() if rows is None else rows:
        answer = _answer(row)
        if isinstance(answer, str):
            yield row, answer


def _answer(row: Row) -> PublishedRun | str | None:
    for source, build in _SOURCES:
        if row.source.startswith(source):
            try:
                return build(row)
            except NotRunnable as reason:
                return str(reason)
    return None


def predict_memory(run: PublishedRun, level: int = 1) -> tuple[dict[str, int] | None, str]:
    """Peaks in bytes by metric, or None and the reason."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable, "-W", "ignore", "-m", "windtunnel.commands.main", "run", "--level", str(level),
            "--device", run.device, "--world-size", str(run.world_size), "--nproc-per-node", str(run.nproc_per_node),
            "--ranks", run.ranks, "--out", out, "--force", *(("--steps", str(run.steps)) if run.steps else ()),
            *(("--allocator", run.allocator) if run.allocator else ()), *run.command,
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            return None, f"not done after {_LONGEST_S} s"
        report = Path(out) / "report.json"
        if done.returncode not in (0, 4) or not report.exists():
            return None, " ".join((done.stdout + done.stderr).partition("Failed: ")[2].split())[
                :160
            ] or "failed"
        ranks = [
            rank for rank in json.loads(report.read_text(encoding="utf-8"))["ranks"] if rank["peak_bytes"]
        ]
    live = max(rank["peak_bytes"] for rank in ranks)
    reserved = max(rank["peak_with_fragments_bytes"] for rank in ranks)
    return {"peak_allocated": live, "peak_active": live, "peak_reserved": reserved}, ""


def _print_summary() -> None:
    runnable = Counter((run.source, run.metric) for run in published_runs())
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for row, reason in why_not():
        reasons[row.source][reason] += 1
    print(f"{'source':34} {'metric':22} rows")
    for (source, metric), count in sorted(runnable.items()):
        print(f"{source:34} {metric:22} {count:4}")
    print("\nnot run")
    for source, why in sorted(reasons.items()):
        for reason, count in why.most_common():
            print(f"{source:34} {count:4}  {reason}")


def _print_memory(jobs: int, level: int, only: str, is_compiled_only: bool) -> None:
    runs = [run for run in published_runs() if run.metric in MEMORY_METRICS and only in run.id + run.source]
    if is_compiled_only:
        runs = [run for run in runs if run.is_compiled]
    by_command: dict[tuple[object, ...], list[PublishedRun]] = defaultdict(list)
    for run in runs:
        by_command[(run.device, run.world_size, run.allocator, run.command)].append(run)
    errors: dict[str, list[float]] = {"compiled": [], "not compiled": []}
    print(f"{'run':44} {'metric':14} {'published':>10} {'predicted':>10} {'error':>8}  notes")
    with ThreadPoolExecutor(jobs) as pool:
        groups = list(by_command.values())
        for group, (peaks, reason) in zip(
            groups, pool.map(lambda group: predict_memory(group[0], level), groups), strict=True
        ):
            for run in group:
                if peaks is None:
                    print(f"{run.id:44} {run.metric:14} not run: {reason}", flush=True)
                    continue
                error = 100 * (peaks[run.metric] / run.value - 1)
                errors["compiled" if run.is_compiled else "not compiled"].append(abs(error))
                print(
                    f"{run.id:44} {run.metric:14} {run.value / 2**30:6.2f} GiB {peaks[run.metric] / 2**30:6.2f} GiB "
                    f"{error:+7.1f}%  {'compiled; ' if run.is_compiled else ''}{run.notes}",
                    flush=True,
                )
    for name, found in errors.items():
        if found:
            print(
                f"{name}: median error {statistics.median(found):.1f} %, worst {max(found):.1f} %, of {len(found)} peaks"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", action="store_true", help="predict every published peak and compare")
    parser.add_argument("--compiled", action="store_true", help="as --memory, of programs that torch.compile")
    parser.add_argument("--level", type=int, default=1, help="2 counts workspaces")
    parser.add_argument("--only", default="", help="part of a run's id or source")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.memory or options.compiled:
        _print_memory(options.jobs, options.level, options.only, options.compiled)
    else:
        _print_summary()


if __name__ == "__main__":
    main()
