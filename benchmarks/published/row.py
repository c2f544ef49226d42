"""One published measurement, as something that can be run and compared.

a row of ../shared/data/published ──> Row (what the source says) ──> PublishedRun (what to run here)
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "DATA",
    "H100_OF_TITAN",
    "MEMORY_METRICS",
    "PROGRAMS",
    "ROOT",
    "NotRunnable",
    "PublishedRun",
    "Row",
    "bytes_of",
    "published_rows",
]

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "benchmarks" / "published_programs"
DATA = ROOT.parent / "shared" / "data" / "published" / "measurements.json.gz"
H100_OF_TITAN = str(PROGRAMS / "h100-96gb.toml")  # torchtitan's H100 has different memory from retail

MEMORY_METRICS = ("peak_allocated", "peak_reserved", "peak_active")
_UNITS = {"GiB": 2**30, "GB(GiB)": 2**30, "GB": 10**9, "MiB": 2**20, "MB(MiB)": 2**20, "bytes": 1}


class NotRunnable(Exception):
    """Why a published row cannot be run here."""


@dataclass(frozen=True)
class Row:
    """One measurement as published."""

    index: int  # in the file
    source: str
    where: str  # repository, commit, file and line, or an address
    model: str
    config: dict[str, Any]
    hardware: str
    metric: str
    value: float
    unit: str
    notes: str
    quality: str


@dataclass(frozen=True)
class PublishedRun:
    """One measurement, and the run that predicts it."""

    id: str
    source: str
    hardware: str  # as published
    device: str  # what --device is given
    world_size: int
    nproc_per_node: int
    network: str | None  # what --network is given; None: as in the vendor's own server
    command: tuple[str, ...]  # the script and its arguments
    metric: str  # step_time_s, tokens_per_s_per_gpu, mfu, peak_allocated, peak_reserved or peak_active
    value: float  # as published: seconds, tokens/s, percent or bytes
    tokens_per_step_per_gpu: float
    notes: str = ""
    steps: int = 2  # what --steps is given; 0: the program counts
    allocator: str | None = None  # what --allocator is given; None: follows the device
    flops_per_token: float = 0.0  # by the source's own formula, for mfu
    peak_flops: float = 0.0  # what the source divides by, for mfu
    is_compiled: bool = False  # by torch.compile
    ranks: str = "0"  # what --ranks is given
    quality: str = ""

    def predicted(self, step_time_s: float) -> float:
        """What the source would have published for a step of this time."""
        if self.metric == "step_time_s":
            return step_time_s
        rate = self.tokens_per_step_per_gpu / step_time_s
        if self.metric == "tokens_per_s_per_gpu":
            return rate
        if self.metric == "mfu":
            return 100 * rate * self.flops_per_token / self.peak_flops
        raise ValueError(f"{self.metric} does not follow from a step's time")


def published_rows(path: Path = DATA) -> Iterator[Row]:
    for index, row in enumerate(json.loads(gzip.decompress(path.read_bytes()))):
        yield Row(
            index, row["source"], row["url_or_repo_path"], row["model"], row["config"], row["hardware"],
            row["metric"], row["value"], row["unit"], row["notes"], row["quality"],
        )  # fmt: skip


def bytes_of(row: Row) -> float:
    """A published amount of memory in bytes; percentages say what they refer to."""
    share = re.fullmatch(r"% of ([0-9.]+) GiB", row.unit)
    if share:
        return row.value / 100 * float(share[1]) * 2**30
    if row.unit not in _UNITS:
        raise NotRunnable(f"its unit {row.unit!r} is not a memory figure")
    return row.value * _UNITS[row.unit]
