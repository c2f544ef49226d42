"""Predicted vs. published step times on A100 and H100.

    step_time_rows ──> windtunnel run --level 3, once for each ──> table: published, predicted, error; medians by source

Run as `python -m benchmarks.published.step_times [--rows N] [--source WORD] [--calibrated] [--data FILE]`. Rows used to
calibrate the roofline are left out unless requested. N rows of each source are taken, in the order of a checksum of their
configuration; 0 takes all. Nothing is fitted here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from benchmarks.published.row import DATA
from benchmarks.published.step_time_rows import TimeRow, time_rows

__all__ = ["chosen", "predict", "summary"]

_LONGEST_S = 1800


def predict(row: TimeRow) -> tuple[float | None, str]:
    """Seconds of a step, or None and the reason."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable, "-W", "ignore", "-m", "windtunnel.commands.main", "run", "--level", "3", "--device", row.device,
            "--world-size", str(row.world_size), "--nproc-per-node", str(min(row.world_size, 8)), "--ranks", row.ranks,
            "--steps", "2", "--out", out, "--force", *(("--network", row.network) if row.network else ()), *row.command,
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            return None, f"not done after {_LONGEST_S} s"
        report = Path(out) / "report.json"
        if done.returncode not in (0, 4) or not report.exists():
            return None, (done.stdout + done.stderr).strip()[-160:].replace("\n", " ")
        time = json.loads(report.read_text(encoding="utf-8")).get("time")
        return (time["step_seconds"], "") if time else (None, "the report has no time")


def chosen(rows: Iterable[TimeRow], n_each: int, word: str = "", calibrated: bool = False) -> list[TimeRow]:
    """This many rows of each source, in the order of their checksums; 0: all."""
    by_source: dict[str, list[TimeRow]] = defaultdict(list)
    for row in rows:
        if word in row.source and row.is_calibration == calibrated:
            by_source[f"{row.source}, {_card(row)}"].append(row)
    found = []
    for source in sorted(by_source):
        ordered = sorted(by_source[source], key=lambda row: row.key)
        found += ordered[: n_each or len(ordered)]
    return found


def summary(errors: dict[str, list[float]]) -> list[str]:
    """A line for each source and one for all."""
    lines = [f"{'source':44} {'rows':>4} {'median':>7} {'90 %':>7} {'worst':>7} {'bias':>7}"]
    every = [error for each in errors.values() for error in each]
    for name, found in [*sorted(errors.items()), ("all", every)]:
        sizes = sorted(map(abs, found))
        high = sizes[min(int(0.9 * len(sizes)), len(sizes) - 1)]
        figures = (statistics.median(sizes), high, sizes[-1], statistics.median(found))
        lines.append(f"{name:44} {len(found):4d} " + " ".join(f"{100 * figure:6.1f}%" for figure in figures))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3, help="of each source; 0: all")
    parser.add_argument("--source", default="", help="part of a source's name")
    parser.add_argument("--calibrated", action="store_true", help="the rows used for calibration instead")
    parser.add_argument("--data", type=Path, default=DATA, help="a file of measurements in the same format")
    options = parser.parse_args()
    errors: dict[str, list[float]] = defaultdict(list)
    print(f"{'row':80} {'published':>10} {'predicted':>10} {'error':>7}")
    for row in chosen(time_rows(options.data), options.rows, options.source, options.calibrated):
        seconds, reason = predict(row)
        label = f"{row.source}, {_card(row)}: {row.name}"[:80]
        if seconds is None:
            print(f"{label:80} {row.seconds:9.3f}s not run: {reason}", flush=True)
            continue
        error = seconds / row.seconds - 1
        errors[f"{row.source}, {_card(row)}"].append(error)
        print(f"{label:80} {row.seconds:9.3f}s {seconds:9.3f}s {100 * error:+6.1f}%", flush=True)
    if errors:
        print("\n" + "\n".join(summary(errors)))


def _card(row: TimeRow) -> str:
    return Path(row.device).stem


if __name__ == "__main__":
    main()
