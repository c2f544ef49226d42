"""Fit the roofline's shares and host times to the published rows reserved for calibration.

    calibration rows ──> one rank recorded once ──> its last step as arrays ──> least squares over log(predicted / published)

Run as `python -m benchmarks.published.step_time_fit CACHE [--rows N] [--jobs N]`; recordings are kept in CACHE, because they
do not depend on the calibration. It prints the values that timing/roofline/calibration.toml then holds. Only rows without a
pipeline are used: there one rank's queue is the whole timeline, so a step is evaluated in milliseconds (the host launches,
the device runs, concurrent communication is hidden). Each parameter is pulled towards a first guess, by the given amount.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from benchmarks.published.step_time_rows import TimeRow, limited, time_rows
from benchmarks.published.step_times import chosen, summary
from windtunnel.devices import find_device
from windtunnel.events.file import read_recording
from windtunnel.events.model import Kind, Phase, Recording
from windtunnel.session.operator_times import call_seconds
from windtunnel.timing.network.links import network_of
from windtunnel.timing.roofline.calibration import Calibration, calibration_of, generation_of
from windtunnel.timing.roofline.fusion import fused_kernels
from windtunnel.timing.roofline.model import Roofline

__all__ = ["Step", "fit", "record"]

_MOST = 3  # micro-batches in a recorded step
_ERROR = 0.05  # relative error that counts as one
# first guess, and how far (in natural logarithms) it may be off
_GUESSES = {
    "matmul_share": (0.80, 0.1), "tile_loss": (0.35, 0.4), "tile_us": (1.5, 0.5), "cache_gain": (1.5, 0.3),
    "attention_share": (0.50, 0.25), "attention_backward_share": (0.35, 0.25), "narrow_head_share": (0.85, 0.15),
    "norm_backward_share": (0.50, 0.3), "softmax_share": (0.80, 0.2), "random_share": (0.80, 0.2),
    "host_forward_us": (12.0, 0.3), "host_backward_us": (40.0, 0.5), "host_module_us": (10.0, 0.3),
    "host_collective_us": (40.0, 0.4), "host_fused_us": (20.0, 0.3),
}  # fmt: skip
_GUESSES_LATER = {  # for a generation that inherits the rest
    "matmul_share": (0.62, 0.1), "attention_share": (0.35, 0.25), "attention_backward_share": (0.25, 0.25),
    "bandwidth_share": (0.90, 0.05),
}  # fmt: skip


def record(row: TimeRow, cache: Path) -> Path:
    """The recording of rank 0, created if it is not in the cache."""
    command, _ = limited(row, _MOST)
    folder = cache / replace(row, command=command).key
    path = folder / "rank0" / "recording.arrows"
    if not (folder / "report.json").exists():
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "windtunnel.commands.main", "run", "--level", "0", "--device", row.device,
             "--world-size", str(row.world_size), "--ranks", "0", "--steps", "2", "--out", str(folder), "--force",
             *command],
            capture_output=True, check=False,
        )  # fmt: skip
    return path


class Step:
    """The last step of one rank: what is launched, in order, as indices of distinct items."""

    def __init__(self, row: TimeRow, recording: Recording) -> None:
        self.row, self.device = row, find_device(row.device)
        columns, self._recording = recording.columns, recording
        steps = np.flatnonzero(columns["kind"] == Kind.STEP)
        rows = np.arange(steps[-2] + 1, steps[-1] + 1)
        kinds = columns["kind"][rows]
        # Communication on separate streams is hidden behind the kernels.
        on_main = (columns["stream"][rows] == 0) & (columns["device"][rows] >= 0)
        keep = (np.isin(kinds, (Kind.OP, Kind.COLLECTIVE)) & on_main) | np.isin(
            kinds, (Kind.MODULE_ENTER, Kind.SYNC)
        )
        rows = rows[keep]
        self._kinds, self._values = columns["kind"][rows], columns["value"][rows]
        self._groups, self._is_async = columns["extra"][rows], columns["role"][rows] == 1
        self._is_backward = columns["phase"][rows] == Phase.BACKWARD
        self._fused, self._hidden = self._fusion(rows)
        nodes = network_of(self.device, min(row.world_size, 8), row.network) if row.world_size > 1 else None
        self._calls = call_seconds(recording, nodes) if nodes is not None else {}
        self._first, self._last = self._micro_batch()
        self.n_recorded = limited(row, _MOST)[1]

    def seconds(self, calibration: Calibration) -> float:
        """The time of a whole step: the recorded micro-batches, and as many more as the row has."""
        device, host = self._durations(Roofline(self.device, calibration))
        whole = self._play(device, host, calibration, slice(None))
        more = self.row.n_micro_batches - self.n_recorded
        if more <= 0:
            return whole
        return whole + more * self._play(device, host, calibration, slice(self._first, self._last))

    def _play(self, device: np.ndarray, host: np.ndarray, calibration: Calibration, part: slice) -> float:
        """A kernel starts when it has been launched and the previous one is done; at a SYNC the host waits for all."""
        device, host = device[part], host[part]
        syncs = np.flatnonzero(self._kinds[part] == Kind.SYNC).tolist()
        asked = done = 0.0
        start = 0
        for stop in [*syncs, len(device)]:
            if stop > start:
                asks = asked + np.cumsum(host[start:stop])
                work = np.cumsum(device[start:stop])
                done = work[-1] + max(done, float(np.max(asks - work + device[start:stop])))
                asked = float(asks[-1])
            if stop < len(device):
                asked = max(asked, done) + calibration.host_sync_us * 1e-6
            start = stop + 1
        return max(asked, done)

    def _durations(self, roofline: Roofline) -> tuple[np.ndarray, np.ndarray]:
        device, host = np.zeros(len(self._kinds)), np.zeros(len(self._kinds))
        for is_backward in (False, True):
            mine = (self._kinds == Kind.OP) & (self._is_backward == is_backward)
            for value in np.unique(self._values[mine]).tolist():
                cost = roofline.cost(self._recording.signatures[value], is_backward=is_backward)
                at = mine & (self._values == value)
                device[at], host[at] = cost.seconds, cost.host_seconds
        device[self._hidden] = host[self._hidden] = 0.0
        for at, n_bytes in self._fused:
            cost = roofline.fused_cost(n_bytes)
            device[at], host[at] = cost.seconds, cost.host_seconds
        host[self._kinds == Kind.MODULE_ENTER] = roofline.host.module_seconds
        for at in np.flatnonzero(self._kinds == Kind.COLLECTIVE).tolist():
            seconds = self._calls.get((int(self._groups[at]), int(self._values[at])), 0.0)
            beside = device[at + 1] if self._is_async[at] and at + 1 < len(device) else 0.0
            device[at], host[at] = max(seconds - beside, 0.0), roofline.host.collective_seconds
        return device, host

    def _fusion(self, rows: np.ndarray) -> tuple[list[tuple[int, int]], list[int]]:
        place = {row: at for at, row in enumerate(rows.tolist())}
        fused, hidden = [], []
        for kernel in fused_kernels(self._recording):
            if kernel.rows[0] in place:
                fused.append((place[kernel.rows[0]], kernel.n_bytes))
                hidden += [place[row] for row in kernel.rows[1:] if row in place]
        return fused, hidden

    def _micro_batch(self) -> tuple[int, int]:
        """Where the first micro-batch begins and ends: with the copies of its data to the device."""
        names = [signature.name for signature in self._recording.signatures]
        is_copy = [
            kind == Kind.OP and names[value].startswith("memcpy")
            for kind, value in zip(self._kinds.tolist(), self._values.tolist(), strict=True)
        ]
        starts = [at for at, copies in enumerate(is_copy) if copies and not any(is_copy[max(at - 6, 0) : at])]
        return (starts[0], starts[1]) if len(starts) > 1 else (0, len(is_copy))


def fit(steps: Sequence[Step], base: Calibration, guesses: dict[str, tuple[float, float]]) -> Calibration:
    """The values that make predicted and published times agree, without leaving the guesses further than needed."""
    names = list(guesses)
    start = np.log([guesses[name][0] for name in names])
    width = np.array([guesses[name][1] for name in names])
    published = np.log([step.row.seconds for step in steps])
    sources = [(step.row.source, step.row.device) for step in steps]
    mean = len(steps) / len(set(sources))
    weights = (
        np.sqrt([mean / sources.count(source) for source in sources]) / _ERROR
    )  # equal weight for every source

    def values(x: np.ndarray) -> Calibration:
        return replace(base, **dict(zip(names, np.exp(x).tolist(), strict=True)))

    def residuals(x: np.ndarray) -> np.ndarray:
        calibration = values(x)
        errors = np.log([step.seconds(calibration) for step in steps]) - published
        return np.concatenate([errors * weights, (x - start) / width])

    # One row in ten is an outlier (a slow node, another version): they should not dominate.
    return values(least_squares(residuals, start, loss="soft_l1", diff_step=0.02, max_nfev=15).x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--rows", type=int, default=40, help="of each source; 0: all")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    rows = chosen(time_rows(), options.rows, calibrated=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        paths = list(pool.map(lambda row: record(row, options.cache), rows))
    steps = [Step(row, read_recording(path)) for row, path in zip(rows, paths, strict=True) if path.exists()]
    print(f"{len(steps)} of {len(rows)} rows were recorded")
    base = calibration_of(find_device("a100-80gb"))
    for generation, guesses in (("ampere", _GUESSES), ("hopper", _GUESSES_LATER)):
        mine = [step for step in steps if generation_of(step.device) == generation]
        base = fit(mine, base, guesses)
        print(generation, json.dumps({name: round(getattr(base, name), 3) for name in guesses}, indent=1))
        errors: dict[str, list[float]] = {}
        for step in mine:
            error = step.seconds(base) / step.row.seconds - 1
            errors.setdefault(f"{step.row.source}, {step.device.id}", []).append(error)
        print("\n".join(summary(errors)), flush=True)


if __name__ == "__main__":
    main()
