"""The published curve of DTR, ours beside it: ResNet-50, batch 200, 224x224, on an 11 GB 2080 Ti.

    examples/resnet50.py ──> windtunnel remat ──┬──> MegEngine's runtime simulated on it ──> beside what was published
                                                └──> our own runtime with torch's allocator

Run as `make dtr-curve`. MegEngine 1.4's documentation shows the curve as a picture and describes it in words; the words
are what is compared. One parameter is fitted to it, the workspace of a convolution; the last table shows what moves
with it and with the memory that a device leaves free. The program ends with an error if the shape is lost.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.dtr.reference.megengine import MegEngineCard, MegEngineOutcome, run_megengine
from benchmarks.dtr.reference.tensor_program import Instruction, tensor_program
from windtunnel.devices import find_device
from windtunnel.events.file import read_recording
from windtunnel.remat.simulated.program import read_program
from windtunnel.timing.cost import seconds_of
from windtunnel.units import GIB, MIB

__all__ = ["Turns", "main", "megengine_curve", "record", "turns_of"]

SCRIPT = Path(__file__).parents[2] / "examples" / "resnet50.py"
DEVICE = "2080ti-11gb"
BATCH = 200
THRESHOLDS = range(2, 11)  # GB
# What MegEngine's documentation says of each threshold: time, peak.
SAID = (
    dict.fromkeys((2, 3, 4, 5), ("falls", "about 8"))
    | dict.fromkeys((6, 7), ("falls", "near 11"))
    | dict.fromkeys((8, 9), ("rises: defragmentation", "near 11"))
    | {10: ("out of memory", "")}
)
WITHIN_GB = 1
USABLE_GIB, WORKSPACES_MIB = (10.0, 10.26, 10.5), (512, 700, 900, 1024)


@dataclass(frozen=True)
class Turns:
    """Where a curve turns, in GB; 0 where it does not."""

    fastest: int
    slower_from: int  # by defragmentation
    out_of_memory_from: int


PUBLISHED = Turns(7, 8, 10)


def record(folder: Path, batch: int = BATCH) -> dict[str, Any]:
    """Dry-run the script once and predict our runtime; returns remat.json."""
    sizes = ",".join(f"{gb}GB" for gb in THRESHOLDS)
    command = [sys.executable, "-W", "ignore", "-m", "windtunnel.commands.main", "remat", "--device", DEVICE,
               "--thresholds", sizes, "--out", str(folder), str(SCRIPT), "--batch", str(batch)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    return json.loads((folder / "remat.json").read_text(encoding="utf-8"))


def instructions_in(folder: Path) -> tuple[Instruction, ...]:
    program = read_program(read_recording(folder / "rank0" / "recording.arrows"))
    return tensor_program(program, seconds_of(program.signatures, find_device(DEVICE)))


def megengine_curve(
    instructions: Sequence[Instruction], card: MegEngineCard, thresholds: Sequence[int] = THRESHOLDS
) -> dict[int, MegEngineOutcome]:
    return {gb: run_megengine(instructions, gb * GIB, card) for gb in thresholds}


def turns_of(curve: dict[int, MegEngineOutcome]) -> Turns:
    fitting = {gb: outcome for gb, outcome in curve.items() if outcome.fits}
    fastest = min(fitting, key=lambda gb: fitting[gb].step_seconds, default=0)
    stalled = [gb for gb, outcome in fitting.items() if outcome.n_defragmentations]
    failed = [gb for gb, outcome in curve.items() if not outcome.fits]
    return Turns(fastest, min(stalled, default=0), min(failed, default=0))


def main() -> None:
    console = Console(width=130)
    with tempfile.TemporaryDirectory() as folder:
        ours = record(Path(folder) / "run")
        instructions = instructions_in(Path(folder) / "run")
    card = MegEngineCard(find_device(DEVICE).usable_bytes)
    curve = megengine_curve(instructions, card)
    unlimited = run_megengine(instructions, 0)
    console.print(_curves(curve, unlimited, ours))
    console.print(
        f"with nothing evicted: {unlimited.step_seconds:.2f} s a step, {unlimited.peak_bytes / GIB:.1f} GiB live;"
        " MegEngine's peak is what it took from the card, without the CUDA context (about 0.5 GiB)"
    )
    lost = list(_lost(curve))
    console.print(_turns(curve))
    console.print(_sensitivity(instructions))
    console.print(f"ours: {ours['answer']}")
    if lost:
        raise SystemExit("the shape of the published curve is lost: " + "; ".join(lost))


def _curves(curve: dict[int, MegEngineOutcome], unlimited: MegEngineOutcome, ours: dict[str, Any]) -> Table:
    table = Table(title=f"ResNet-50, batch {BATCH}, 224x224 on {DEVICE}")
    headings = ("threshold", "published time", "published peak", "MegEngine simulated", "defrag", "peak GiB",
                "windtunnel.dtr", "peak GiB")  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="left" if "published" in heading else "right")
    rows = {point["threshold_bytes"] // GIB: point for point in ours["points"]}
    for gb, outcome in curve.items():
        mine = rows[gb]
        table.add_row(
            f"{gb} GB",
            *SAID[gb],
            f"x{outcome.step_seconds / unlimited.step_seconds:.2f}" if outcome.fits else "out of memory",
            str(outcome.n_defragmentations) if outcome.fits else "",
            f"{outcome.peak_reserved_bytes / GIB:.1f}" if outcome.fits else "",
            f"x{mine['slowdown']:.2f}" if mine["fits"] else "out of memory",
            f"{mine['peak_reserved_bytes'] / GIB:.1f}" if mine["fits"] else "",
        )
    return table


def _turns(curve: dict[int, MegEngineOutcome]) -> Table:
    table = Table(title="where the curve turns (GB)")
    for heading in ("", "published", "simulated"):
        table.add_column(heading)
    found = turns_of(curve)
    for word, name in (("fastest", "fastest"), ("slower by defragmentation from", "slower_from"),
                       ("out of memory from", "out_of_memory_from")):  # fmt: skip
        table.add_row(word, str(getattr(PUBLISHED, name)), str(getattr(found, name)))
    table.add_row("time at 2 far above time at 3", "yes", _yes(_seconds(curve, 2) > 2 * _seconds(curve, 3)))
    higher = curve[2].peak_reserved_bytes > curve[3].peak_reserved_bytes
    table.add_row("peak at 2 above peak at 3", "yes", _yes(higher))
    for gb in (6, 7, 8, 9):  # "near 11", of which the device leaves about 10.3
        peak, usable = curve[gb].peak_reserved_bytes, find_device(DEVICE).usable_bytes
        share = f"{peak / usable:.0%} of what is usable, {peak / GIB:.1f} GiB"
        table.add_row(f"peak at {gb}", "near the device's memory", share)
    return table


def _lost(curve: dict[int, MegEngineOutcome]) -> Iterator[str]:
    found = turns_of(curve)
    for name in Turns.__dataclass_fields__:
        if abs(getattr(found, name) - getattr(PUBLISHED, name)) > WITHIN_GB:
            yield f"{name} is {getattr(found, name)} GB, published {getattr(PUBLISHED, name)}"
    falling = [_seconds(curve, gb) for gb in range(2, found.fastest + 1)]
    if falling != sorted(falling, reverse=True):
        yield "the time does not fall up to the fastest threshold"
    if curve[2].peak_reserved_bytes <= curve[3].peak_reserved_bytes:
        yield "the peak at 2 GB is not above the peak at 3 GB"


def _sensitivity(instructions: Sequence[Instruction]) -> Table:
    table = Table(title="what moves: fastest / slower from / out of memory from (GB)")
    table.add_column("usable GiB")
    for workspace in WORKSPACES_MIB:
        table.add_column(f"workspace {workspace} MiB")
    for usable in USABLE_GIB:
        cells = []
        for workspace in WORKSPACES_MIB:
            card = MegEngineCard(int(usable * GIB), workspace * MIB)
            turns = turns_of(megengine_curve(instructions, card, range(6, 11)))
            cells.append(f"{turns.fastest} / {turns.slower_from or '-'} / {turns.out_of_memory_from or '-'}")
        table.add_row(f"{usable:g}", *cells)
    return table


def _seconds(curve: dict[int, MegEngineOutcome], gb: int) -> float:
    return curve[gb].step_seconds if curve[gb].fits else float("inf")


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


if __name__ == "__main__":
    main()
