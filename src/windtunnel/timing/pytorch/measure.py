"""Time operators on the local device; runs in a separate process.

    python -m windtunnel.timing.pytorch.measure REQUEST.json RESULT.json

    Request ──> one warm-up, then passes over the step until the times settle ──> Measured by signature

A pass costs about as long as a step of the program. Passes are repeated until another would add nothing new, or the time
is up: the budget, or a few steps.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

import torch

from windtunnel.events.model import Signature
from windtunnel.timing.measured.costs import HostSeconds, Measured, measured_row
from windtunnel.timing.measured.steps import ActKind, Request
from windtunnel.timing.pytorch.calls import CannotRebuild, dtype_of
from windtunnel.timing.pytorch.host import call_overhead, copy_bytes_per_s, measure_host
from windtunnel.timing.pytorch.memory import available_bytes, peak_bytes, settle_allocator
from windtunnel.timing.pytorch.operator_workspace import scratch_meter
from windtunnel.timing.pytorch.rerun import Clock, Replay, below_autograd
from windtunnel.timing.pytorch.storages import Storages, index_bound, span_bytes
from windtunnel.whole_file import whole_file

__all__ = ["Outcome", "main", "measure", "measure_request"]

_MOST_PASSES = 5
_MOST_STEPS = 4.0  # all passes together, in steps of the program
_SETTLED = 0.03  # two passes that agree this well: another would add nothing new
_MEMORY_SHARE = 0.5  # of what is free here
# Of one thread, the processor's own account leaves out what other programs take from it.
_CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "thread": time.thread_time}
_OUTLIER = 4.0  # times the median of its kind: something else ran


@dataclass(frozen=True)
class Outcome:
    entries: list[Measured]  # one for each signature
    host: HostSeconds
    seconds: float  # spent on the operators
    host_measuring_seconds: float  # spent on what belongs to the machine and is kept
    n_passes: int
    disturbed_share: float  # of the samples: another program had the processor meanwhile


def measure(
    signatures: Sequence[Signature],
    counts: Sequence[int],
    budget_s: float,
    on_progress: Callable[[int, int], None] = lambda n_done, n_total: None,
    *,
    device: str = "cpu",
) -> list[Measured]:
    """Time operators outside of a program: each by itself, on its own memory."""
    request = Request(list(signatures), list(counts), scratch=[-1] * len(signatures))
    fresh = 0
    for i, signature in enumerate(signatures):
        inputs = list(range(fresh, fresh + len(signature.inputs)))
        fresh += len(inputs)
        for storage, spec in zip(inputs, signature.inputs, strict=True):
            try:
                request.sizes[storage] = span_bytes(spec, dtype_of(spec.dtype))
            except CannotRebuild:
                request.sizes[storage] = 0
        request.acts.append([int(ActKind.RUN), i, inputs, [], []])
    return measure_request(request, budget_s, on_progress, device=device).entries


def measure_request(
    request: Request,
    budget_s: float,
    on_progress: Callable[[int, int], None] = lambda n_done, n_total: None,
    *,
    device: str = "cpu",
    host: HostSeconds | None = None,
    on_try: Callable[[int], None] = lambda signature: None,
    clock: Clock = time.perf_counter,
    owns_process: bool = False,
) -> Outcome:
    """Time the operators of a program; `host` is what is known of this machine."""
    place = torch.device(device)
    began = clock()
    if host is None or not host.forward:
        host = replace(measure_host(place, clock), bytes_per_s=host.bytes_per_s if host else 0.0)
    host_s = clock() - began
    start = clock()
    if owns_process:
        settle_allocator(request)
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        with below_autograd():
            replay, scratch, n_passes = _passes(request, place, host, budget_s, on_progress, on_try, clock)
    finally:
        if is_collecting:
            gc.enable()
    overhead = call_overhead(place, clock)
    entries = [_entry(replay, i, overhead, scratch.get(i, 0)) for i in range(len(request.signatures))]
    seconds = clock() - start
    if not host.bytes_per_s and any(each.reason for each in entries):
        began = clock()
        host = replace(host, bytes_per_s=copy_bytes_per_s(place))
        host_s += clock() - began
    return Outcome(entries, host, seconds, host_s, n_passes, replay.disturbed_share)


def _passes(
    request: Request,
    place: torch.device,
    host: HostSeconds,
    budget_s: float,
    on_progress: Callable[[int, int], None],
    on_try: Callable[[int], None],
    clock: Clock,
) -> tuple[Replay, dict[int, int], int]:
    start = clock()
    deadline = start + budget_s
    keeps_results = peak_bytes(request) <= _MEMORY_SHARE * available_bytes(place)
    bound = index_bound(request.signatures)
    storages = Storages(request.sizes, bound, place, weights=request.weights, keeps_results=keeps_results)
    total, n_tried = len(request.signatures), 0

    def tried(signature: int) -> None:
        nonlocal n_tried
        n_tried += 1
        on_try(signature)
        on_progress(n_tried, total)

    replay = Replay(request, storages, place, clock, tried)
    scratch = _warm_up(replay, request, place, deadline)
    n_passes, before_s = 0, 0.0
    while n_passes < _MOST_PASSES:
        began = clock()
        is_whole = replay.timed_pass(deadline)
        n_passes += 1
        next_end = 2 * clock() - began
        step_s = _step_seconds(replay, request, host)
        is_settled = n_passes > 1 and abs(step_s - before_s) <= _SETTLED * step_s
        before_s = step_s
        if not is_whole or is_settled or next_end > deadline or next_end - start > _MOST_STEPS * step_s:
            break
    return replay, scratch, n_passes


def _warm_up(replay: Replay, request: Request, place: torch.device, deadline: float) -> dict[int, int]:
    """Run each operator once; bytes of scratch of those of which the recording does not say it."""
    known = {i: n_bytes for i, n_bytes in enumerate(request.scratch) if n_bytes >= 0}
    if len(known) == len(request.signatures):
        replay.warm_up(deadline, lambda signature, operator, args, kwargs: operator(*args, **kwargs))
        return known
    meter = scratch_meter(place)
    meter.start()
    try:
        replay.warm_up(deadline, meter.run)
    finally:
        measured = meter.stop()
    return measured | known


def _step_seconds(replay: Replay, request: Request, host: HostSeconds) -> float:
    """One step of the program, by the latest pass."""
    total = 0.0
    for number, count in enumerate(request.counts):
        by_act, _ = replay.samples_of(number)
        if count and by_act:
            total += count * (mean(samples[-1] for samples in by_act.values()) + host.forward)
    return total


def _entry(replay: Replay, number: int, overhead: float, scratch: int) -> Measured:
    if number in replay.reasons:
        return Measured(reason=replay.reasons[number])
    by_act, is_quiet = replay.samples_of(number)
    if not by_act:
        return Measured(reason="the time budget for measuring ran out before it was run")
    every = sorted(max(0.0, s - overhead) for samples in by_act.values() for s in samples)
    places = [median(each) for each in by_act.values()]
    beside = replay.beside.get(number, 0.0) / max(1, replay.n_runs[number])
    seconds = mean(_without_outliers(places)) - overhead
    return Measured(max(0.0, seconds) + beside, _spread(every), len(every) if is_quiet else 0, scratch)


def _without_outliers(values: list[float]) -> list[float]:
    middle = median(values)
    return [each for each in values if each <= _OUTLIER * middle] if len(values) > 2 else values


def _spread(values: list[float]) -> float:
    if len(values) < 2 or median(values) <= 0:
        return 0.0
    first, middle, third = quantiles(values, n=4, method="inclusive")
    return (third - first) / middle if middle > 0 else 0.0


def main(arguments: Sequence[str]) -> int:
    source, target = Path(arguments[0]), Path(arguments[1])
    content = json.loads(source.read_text(encoding="utf-8"))
    if content["threads"]:
        torch.set_num_threads(content["threads"])
    request = Request.from_json(content)
    host = HostSeconds(**content["host"]) if content["host"] else None
    with open(target.with_suffix(".trying"), "wb", buffering=0) as trying:

        def note_attempt(signature: int) -> None:
            os.pwrite(trying.fileno(), b"%-12d" % signature, 0)

        outcome = measure_request(
            request,
            content["budget_s"],
            _tell,
            device=content["device"],
            host=host,
            clock=_CLOCKS[content["clock"]],
            owns_process=True,
            # A kernel that takes the process down with it is known by this file.
            on_try=note_attempt,
        )
    _write(target, outcome)
    return 0


def _tell(n_done: int, n_total: int) -> None:
    if n_done % 40 == 0 or n_done == n_total:
        sys.stdout.write(f"measured {n_done} of {n_total}\n")
        sys.stdout.flush()


def _write(target: Path, outcome: Outcome) -> None:
    content: dict[str, Any] = {
        "entries": _rows(outcome.entries),
        "host": asdict(outcome.host),
        "seconds": outcome.seconds,
        "host_measuring_seconds": outcome.host_measuring_seconds,
        "n_passes": outcome.n_passes,
        "disturbed_share": outcome.disturbed_share,
    }
    with whole_file(target) as file:
        file.write(json.dumps(content).encode())


def _rows(entries: Iterable[Measured]) -> list[list[Any]]:
    return [measured_row(each) for each in entries]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
