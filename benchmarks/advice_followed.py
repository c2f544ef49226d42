"""Is the advice right? Every recommendation of `run`, `remat` and `remat --advise` is followed and simulated.

    case ──> windtunnel run --advise ──> remedies ──> the script with the remedy written into it ──> promised, found
        └──> windtunnel remat ──> best threshold ──> that threshold alone
        └──> windtunnel remat --advise ──> the recommended strategy ──> the script with it, or that threshold alone

`python -m benchmarks.advice_followed [CASE ...]`; it exits with 1 if something that was said to fit does not, or a figure
is more than 2 % off.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from windtunnel.units import MIB, format_bytes

__all__ = ["CASES", "Case", "Followed", "follow", "main"]

SCRIPT = Path(__file__).parent / "advice_programs" / "train.py"
TOLERANCE = 0.02
_CHECKPOINT = re.compile(r"activation checkpointing on (\S+)")
_BATCH = re.compile(r"a batch of (\d+) instead")


@dataclass(frozen=True)
class Case:
    """A model with a batch size on a device with this much memory."""

    model: str
    batch_size: int
    device: str


CASES = (
    Case("gpt", 80, "rtx4090-24gb"),
    Case("gpt", 48, "rtx4090-24gb:mem=16GiB"),
    Case("gpt", 4, "rtx4090-24gb"),
    Case("bert", 96, "v100-16gb"),
    Case("bert", 8, "a100-40gb"),
    Case("moe", 128, "rtx4090-24gb"),
    Case("vit", 256, "v100-16gb"),
    Case("vit", 256, "a100-40gb"),
    Case("resnet", 256, "2080ti-11gb"),
    Case("resnet", 64, "rtx4090-24gb"),
    Case("llama", 64, "rtx4090-24gb"),
    Case("llama", 96, "a100-40gb"),
)


@dataclass(frozen=True)
class Followed:
    """One recommendation: what was promised, and the outcome."""

    case: Case
    source: str  # the command that gave it
    what: str
    promised_bytes: int
    found_bytes: int
    promised_fit: bool
    found_fit: bool

    @property
    def off(self) -> float:
        return self.found_bytes / self.promised_bytes - 1

    @property
    def is_true(self) -> bool:
        return abs(self.off) <= TOLERANCE and (self.found_fit or not self.promised_fit)


def follow(case: Case) -> Iterator[Followed]:
    """Follow every recommendation of one case."""
    with tempfile.TemporaryDirectory(prefix="windtunnel-advice-") as name:
        folder = Path(name)
        report = _run(case, folder / "first", "--advise")
        for remedy in report["advice"]:
            options, environment = _options_of(remedy["what"], case)
            found = _run(Case(case.model, options.pop("size"), case.device), folder / "again", "--no-advise",
                         arguments=options["arguments"], environment=environment)  # fmt: skip
            rank = found["ranks"][0]
            yield Followed(
                case, "run", remedy["what"], remedy["needs_bytes"], rank["peak_with_fragments_bytes"],
                remedy["fits"], rank["fits"],
            )  # fmt: skip
        yield from _follow_remat(case, folder / "remat")


def _options_of(what: str, case: Case) -> tuple[dict[str, Any], dict[str, str]]:
    arguments: list[str] = []
    if found := _CHECKPOINT.search(what):
        arguments += ["--checkpointed", found[1]]
    if "cross-entropy" in what:
        arguments.append("--chunk-loss")
    batch = _BATCH.search(what)
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if "expandable" in what else {}
    return {"size": int(batch[1]) if batch else case.batch_size, "arguments": arguments}, environment


def _follow_remat(case: Case, folder: Path) -> Iterator[Followed]:
    command = ["remat", "--device", case.device, "--json", "--force", "--no-html"]
    script = [str(SCRIPT), case.model, "--batch-size", str(case.batch_size)]
    curve = _answer([*command, "--out", str(folder), *script])
    best = curve["best"]
    if best is not None:
        yield _threshold(case, folder, "remat", best["threshold_bytes"], best["peak_reserved_bytes"])
    advice = _answer([*command, "--advise", "--out", str(folder), *script])
    if advice["recommended"] is None:
        return
    chosen = advice["points"][advice["recommended"]]
    if chosen["way"] == "dtr":
        yield _threshold(case, folder, "remat --advise", chosen["threshold_bytes"], chosen["needs_bytes"])
        return
    arguments: list[str] = []
    if chosen["way"] == "blocks":
        first = re.search(r"(\S+)\.\d+ to", advice["blocks"])
        assert first is not None, advice["blocks"]
        arguments = ["--checkpointed", f"{first[1]}.0-{chosen['n_blocks'] - 1}"]
    rank = _run(case, folder.parent / "again", "--no-advise", arguments=arguments)["ranks"][0]
    yield Followed(
        case, "remat --advise", chosen["label"], chosen["needs_bytes"], rank["peak_with_fragments_bytes"], True,
        rank["fits"],
    )  # fmt: skip


def _threshold(case: Case, folder: Path, source: str, threshold: int, promised: int) -> Followed:
    size = f"{threshold // MIB}MiB"
    found = _answer(["remat", "--device", case.device, "--json", "--thresholds", size, str(folder)])[
        "points"
    ][0]
    return Followed(
        case, source, f"windtunnel.dtr at {size}", promised, found["peak_reserved_bytes"], True, found["fits"]
    )


def _run(
    case: Case,
    folder: Path,
    *options: str,
    arguments: list[str] | None = None,
    environment: dict[str, str] | None = None,
) -> dict[str, Any]:
    script = [str(SCRIPT), case.model, "--batch-size", str(case.batch_size), *(arguments or [])]
    common = ["run", "--json", "--force", "--no-html", "--device", case.device, "--out", str(folder)]
    return _answer([*common, *options, *script], environment)


def _answer(command: list[str], environment: dict[str, str] | None = None) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel.commands.main", *command], capture_output=True, text=True, check=False,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    if done.returncode not in (0, 4):
        raise SystemExit(f"windtunnel {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def main(wanted: list[str]) -> int:
    """Print every recommendation; 1 if one of them does not hold."""
    table = Table("case", "from", "recommendation", "promised", "found", "off", "fits?")
    rows: list[Followed] = []
    for i, case in enumerate(CASES):
        if wanted and str(i) not in wanted and case.model not in wanted:
            continue
        for row in follow(case):
            rows.append(row)
            name = f"{i} {case.model} {case.batch_size} {case.device}"
            print(
                f"{name}: {row.source}: {row.what}: {row.off:+.2%} {'' if row.is_true else 'NOT TRUE'}",
                file=sys.stderr,
            )
            table.add_row(
                name, row.source, row.what, format_bytes(row.promised_bytes), format_bytes(row.found_bytes),
                f"{row.off:+.2%}", f"{'yes' if row.promised_fit else 'no'} -> {'yes' if row.found_fit else 'no'}",
                style="" if row.is_true else "red",
            )  # fmt: skip
    Console(width=160).print(table)
    wrong = [row for row in rows if not row.is_true]
    largest = max((abs(row.off) for row in rows), default=0.0)
    print(
        f"{len(rows)} recommendations followed, {len(wrong)} not true; the largest difference is {largest:.2%}"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
