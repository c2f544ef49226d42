"""Does `windtunnel.dtr` keep up with `torch.utils.checkpoint` at the same measured peak, and what does it cost idle?

eager | dtr, threshold never reached | checkpoint, each placement | dtr at that placement's measured peak

Steps of all contestants alternate in one process; the time is the least CPU time of a step, the peak is what
torch's profiler saw allocated. dtr must end with the weights and buffers plain training ends with, bit for bit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

import windtunnel.dtr as dtr
from benchmarks.dtr.models import GPT, ResNet50
from windtunnel.remat.pytorch.meter import meter_for

__all__ = ["Contest", "Row", "main", "measure_peak"]

MOST_IDLE_OVERHEAD = 0.05
MOST_AGAINST_CHECKPOINT = 1.15
_ROUNDS = 4
_METER = meter_for(torch.device("cpu"))
Way = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Row:
    name: str
    seconds: float
    peak_bytes: int  # above what is there before the step
    stats: dict[str, float]
    is_same: bool  # as plain training, bit for bit


class Contest:
    """One model, trained for a step at a time in different ways."""

    def __init__(self, make: Callable[[], torch.nn.Module], batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.make = make
        self.batch = batch
        self.model = make()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3, momentum=0.9)
        self.step()  # gradients and momentum exist from here on

    def step(self) -> None:
        self.model(*self.batch).backward()
        self.optimizer.step()
        for parameter in self.model.parameters():  # kept: a step that had to make them would be slower
            parameter.grad.zero_()

    @contextmanager
    def segments(self, n: int) -> Iterator[None]:
        self.model.trunk.segments = n
        try:
            yield
        finally:
            self.model.trunk.segments = 0

    def weights_after(self, n_steps: int, way: Way) -> list[torch.Tensor]:
        """Train a new model in this way; what it ends with."""
        torch.manual_seed(0)
        fresh = Contest(self.make, self.batch)
        fresh.model.trunk.segments = self.model.trunk.segments
        for _ in range(n_steps):
            with way():
                fresh.step()
        return [each.detach() for each in (*fresh.model.parameters(), *fresh.model.buffers())]


def under(n_bytes: int) -> Way:
    """With dtr, this many bytes above whatever is there when the step begins."""
    return lambda: dtr.limit(_METER.live_bytes() + n_bytes)


def measure_peak(step: Callable[[], None]) -> int:
    """Most bytes allocated during a step above those before it, as torch's profiler saw them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    live = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most


def budget_for(contest: Contest, peak_bytes: int) -> int:
    """The budget at which dtr's own measured peak is that of the other."""
    budget = peak_bytes
    for _ in range(6):
        with under(budget)():
            contest.step()
            reached = measure_peak(contest.step)
        if reached <= peak_bytes:
            break
        budget -= reached - peak_bytes
    return max(budget, 1)


def run(name: str, contest: Contest, placements: dict[str, int], console: Console) -> bool:
    """Print one model's table. False: a limit was missed."""
    plain = measure_peak(contest.step)
    ways: dict[str, tuple[int, Way]] = {
        "eager": (0, nullcontext),
        "dtr, threshold far away": (0, lambda: dtr.limit("1TB")),
        "dtr, threshold just not reached": (0, under(int(plain * 1.2))),
    }
    for place, n in placements.items():
        with contest.segments(n):
            peak = measure_peak(contest.step)
        budget = budget_for(contest, peak)
        ways[f"checkpoint, {place}"] = (n, nullcontext)
        ways[f"dtr, peak of {place}"] = (0, under(budget))
    seconds = {way: float("inf") for way in ways}
    for _ in range(_ROUNDS):
        for way, (n, context) in ways.items():
            with contest.segments(n), context():
                start = time.process_time()
                contest.step()
                seconds[way] = min(seconds[way], time.process_time() - start)
    expected = contest.weights_after(2, nullcontext)
    rows = []
    for way, (n, context) in ways.items():
        before = dtr.stats()
        with contest.segments(n), context():
            peak = measure_peak(contest.step)
            after = dtr.stats()
        with contest.segments(n):
            ended = contest.weights_after(2, context)
        is_same = all(torch.equal(a, b) for a, b in zip(expected, ended, strict=True))
        counts = {
            key: after[key] - before.get(key, 0)
            for key in ("evictions", "rematerialisations")
            if key in after
        }
        rows.append(Row(way, seconds[way], peak, counts, is_same))
    _print(name, rows, console)
    return _holds(rows, console)


def _print(name: str, rows: list[Row], console: Console) -> None:
    table = Table(title=name)
    for column in (
        "",
        "CPU s a step",
        "x eager",
        "peak MiB",
        "% of eager",
        "evicted",
        "computed again",
        "same bits",
    ):
        table.add_column(column, justify="left" if not column else "right")
    eager = rows[0]
    for row in rows:
        table.add_row(
            row.name, f"{row.seconds:.3f}", f"{row.seconds / eager.seconds:.3f}", f"{row.peak_bytes / 2**20:.0f}",
            f"{100 * row.peak_bytes / eager.peak_bytes:.1f}", f"{row.stats.get('evictions', 0):.0f}",
            f"{row.stats.get('rematerialisations', 0):.0f}", "yes" if row.is_same else "NO",
        )  # fmt: skip
    console.print(table)


def _holds(rows: list[Row], console: Console) -> bool:
    eager = rows[0].seconds
    wrong = [f"{row.name}: weights differ" for row in rows if not row.is_same and "dtr" in row.name]
    if any(not row.is_same and "checkpoint" in row.name for row in rows):
        console.print(
            "  torch.utils.checkpoint runs BatchNorm twice, so running statistics differ from plain training"
        )
    for row in rows[1:3]:
        if row.seconds > (1 + MOST_IDLE_OVERHEAD) * eager:
            wrong.append(
                f"{row.name}: {row.seconds / eager - 1:.1%} over eager, allowed {MOST_IDLE_OVERHEAD:.0%}"
            )
    for other, ours in zip(rows[3::2], rows[4::2], strict=True):
        ratio = ours.seconds / other.seconds
        console.print(f"  {ours.name}: {ratio:.3f} x the time of {other.name}")
        if ratio > MOST_AGAINST_CHECKPOINT:
            wrong.append(f"{ours.name}: {ratio:.2f} x {other.name}, allowed {MOST_AGAINST_CHECKPOINT}")
    for sentence in wrong:
        console.print(f"  [red]{sentence}[/red]")
    return not wrong


def main() -> int:
    torch.set_num_threads(1)
    console = Console(width=140)
    torch.manual_seed(0)
    images = (torch.randn(32, 3, 96, 96), torch.randint(0, 1000, (32,)))
    tokens = (torch.randint(0, 4096, (2, 512)), torch.randint(0, 4096, (2, 512)))
    good = run("ResNet-50, batch 32, 96x96", Contest(ResNet50, images),
               {"every block": 16, "4 segments": 4, "2 segments": 2}, console)  # fmt: skip
    good &= run("GPT, width 512, 8 layers, sequence 512, batch 2", Contest(GPT, tokens),
                {"every block": 8, "2 segments": 2, "1 segment": 1}, console)  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
