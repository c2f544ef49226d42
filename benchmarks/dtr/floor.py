"""Is the peak ever above plain training's, however low the threshold? Six small models, five thresholds each.

    plain training ──> its peak, its bits ──────┐
    the same under dtr at each threshold ───────┴──> peak <= plain's? same bits?

The peak is measured twice: by torch's profiler, which sees every allocation, and by dtr's own meter, which looks at
operators and so never sees more.
"""

from __future__ import annotations

import gc
import sys
import time
import warnings
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.dtr.small_models import SMALL_MODELS
from benchmarks.dtr.training import measure_peak
from windtunnel.remat.evict_and_recompute import Settings
from windtunnel.remat.pytorch.costs import Costs
from windtunnel.remat.pytorch.meter import meter_for
from windtunnel.remat.pytorch.runtime import Runtime

__all__ = ["THRESHOLDS", "Trained", "main", "threshold_for", "train"]

# Shares of plain training's activations, over what is there without them; one byte is below all of them.
THRESHOLDS: dict[str, float | None] = {"75 %": 0.75, "50 %": 0.5, "25 %": 0.25, "10 %": 0.1, "1 byte": None}
_CPU = torch.device("cpu")
_METER = meter_for(_CPU)
_MINIMUM = 4096  # bytes: the models are small


@dataclass(frozen=True)
class Trained:
    """What training for some steps ended with; bytes are over those in use before the model was made."""

    bits: list[bytes]  # losses, weights, buffers and the last gradients
    static_bytes: int  # weights and optimizer state
    peaks: list[int]  # of each step, by torch's profiler
    seen_bytes: int = 0  # the most dtr's own meter saw
    n_computed: int = 0  # values, in the last step
    seconds: float = 0.0  # CPU time of the fastest step

    @property
    def peak(self) -> int:
        return max(self.peaks)


def train(name: str, threshold: int | None = None, n_steps: int = 4, costs: Costs | None = None) -> Trained:
    """Train a new model; with a threshold, in bytes over those in use now, under dtr. Costs: measured, if not given."""
    gc.collect()
    before = _METER.live_bytes()
    torch.manual_seed(0)
    model = SMALL_MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses: list[torch.Tensor] = []

    def step() -> None:
        optimizer.zero_grad()
        loss = model()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    limit = None if threshold is None else max(before + threshold, 1)
    live = Runtime(Settings(threshold=limit, minimum_size=_MINIMUM), _CPU, costs)
    found = live.engine.statistics
    if threshold is not None:
        live.start()
    peaks, seconds, n_computed = [], float("inf"), 0
    try:
        for _ in range(n_steps):
            static = _METER.live_bytes() - before
            computed, start = found.rematerialisations, time.process_time()
            peaks.append(static + measure_peak(step))
            seconds = min(seconds, time.process_time() - start)
            n_computed = found.rematerialisations - computed
    finally:
        live.stop()
    moments = [each for state in optimizer.state.values() for each in state.values()]
    static = sum(each.nbytes for each in (*model.parameters(), *model.buffers(), *moments))
    ended = [*losses, *model.state_dict().values(), *(each.grad for each in model.parameters())]
    bits = [each.detach().numpy().tobytes() for each in ended]
    return Trained(bits, static, peaks, max(found.peak_live_bytes - before, 0), n_computed, seconds)


def threshold_for(plain: Trained, share: float | None) -> int:
    """Over what is in use before the model is made. None: far below that, so that one byte remains."""
    if share is None:
        return -(1 << 60)
    return plain.static_bytes + int(share * (plain.peak - plain.static_bytes))


def main() -> int:
    warnings.filterwarnings("ignore", "windtunnel.dtr: the threshold")
    torch.set_num_threads(1)
    columns = (
        "model",
        "threshold",
        "peak",
        "as dtr saw it",
        "first step's",
        "computed again",
        "time",
        "same bits",
    )
    table = Table(*columns, box=None)
    n_above = n_different = 0
    for name in SMALL_MODELS:
        plain = train(name)
        table.add_row(
            name, "none", f"{plain.peak / 2**20:.2f} MiB", "", "", "", f"{1e3 * plain.seconds:.0f} ms"
        )
        for label, share in THRESHOLDS.items():
            found = train(name, threshold_for(plain, share))
            n_above += found.peak > plain.peak
            n_different += found.bits != plain.bits
            table.add_row(
                "", label, f"x{found.peak / plain.peak:.3f}", f"x{found.seen_bytes / plain.peak:.3f}",
                f"x{found.peaks[0] / plain.peaks[0]:.3f}", f"{found.n_computed}", f"x{found.seconds / plain.seconds:.2f}",
                "yes" if found.bits == plain.bits else "NO",
            )  # fmt: skip
    console = Console(width=120)
    console.print(
        "peak and CPU time over those of plain training; the threshold is a share of its activations"
    )
    console.print(table)
    console.print(f"above plain training's peak: {n_above}; other bits: {n_different}")
    return 1 if n_above or n_different else 0


if __name__ == "__main__":
    sys.exit(main())
