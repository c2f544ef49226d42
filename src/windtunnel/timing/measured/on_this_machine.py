"""Costs of the operators of some recordings on this machine: from a file, or measured now if missing there.

    recordings ──> what the file of this device lacks ──> a fresh process times it (pytorch.measure) ──> MeasuredCosts
                                                                        └──> the file, for the next run

Measuring runs in a separate process, so its memory, its threads and a crashing kernel do not affect ours.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from windtunnel.caches import cache_folder
from windtunnel.errors import CorruptFile, MissingFramework, WindtunnelError
from windtunnel.events.model import Recording, Signature
from windtunnel.timing.measured.costs import Fingerprint, HostSeconds, Measured, MeasuredCosts, measured_of
from windtunnel.timing.measured.steps import Request, request_of

__all__ = ["cache_path", "fingerprint_of", "measure_here"]

_MOST_CRASHES = 5
_MOST_NAMED = 5
_BUSY = 0.1  # share of disturbed measurements above which a note is given
_Tell = Callable[[str], None]


def measure_here(
    recordings: Sequence[Recording],
    *,
    device: str = "cpu",
    threads: int | None = None,
    cache: Path | None = None,
    budget_s: float = 120.0,
    clock: str = "wall",
    tell: _Tell = lambda text: None,
) -> MeasuredCosts:
    """Costs of all operators that run after the models are built.

    `threads`: as in the recording, if None. `clock`: "wall", or "thread" for the processor time of a single
    thread, which a busy machine does not disturb.
    """
    if threads is None:
        threads = max((_threads_of(each) for each in recordings), default=0)
    torch_version = next((str(each.header.get("torch", "")) for each in recordings), "")
    fingerprint = fingerprint_of(device, threads, torch_version)
    path = cache_path(cache or cache_folder(), fingerprint)
    known, notes = _load(path, fingerprint)
    request = request_of(recordings, known.entries)
    if not request.signatures and known.host_seconds.forward:
        return known
    found = _measured(request, fingerprint, known.host_seconds, budget_s, clock, tell)
    entries = known.entries | found.entries
    costs = MeasuredCosts(
        fingerprint,
        entries,
        found.host,
        notes=(*notes, *_notes(found)),
        measuring_seconds=found.seconds,
        host_measuring_seconds=found.host_measuring_seconds,
    )
    _save(costs, path, tell)
    return costs


def cache_path(folder: Path, fingerprint: Fingerprint) -> Path:
    """A name a person can read, from which nothing is read back."""
    words = [
        fingerprint.device,
        fingerprint.model,
        f"{fingerprint.cores} cores",
        f"torch {fingerprint.torch}",
    ]
    if fingerprint.threads:
        words.insert(3, f"{fingerprint.threads} threads")
    name = "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", word).strip("-.").lower() for word in words if word)
    return folder / f"{name[:180]}.json"


def fingerprint_of(device: str, threads: int, torch_version: str) -> Fingerprint:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    model = _cpu_model() if device == "cpu" else _accelerator_model(device)
    return Fingerprint(device, model, cores, threads, torch_version)


@dataclass(frozen=True)
class _Found:
    entries: dict[Signature, Measured]
    host: HostSeconds
    seconds: float
    host_measuring_seconds: float
    disturbed_share: float


def _load(path: Path, fingerprint: Fingerprint) -> tuple[MeasuredCosts, tuple[str, ...]]:
    nothing = MeasuredCosts(fingerprint)
    if not path.exists():
        return nothing, ()
    try:
        known = MeasuredCosts.load(path)
    except CorruptFile as error:
        return nothing, (f"{error.message}; it is ignored and will be rewritten",)
    if known.fingerprint != fingerprint:
        return nothing, (f"{path} belongs to {known.fingerprint}; it is ignored and will be rewritten",)
    return known, ()


def _save(costs: MeasuredCosts, path: Path, tell: _Tell) -> None:
    # What the time was too short for, or other programs disturbed, is tried again by the next run.
    entries = {
        s: m
        for s, m in costs.entries.items()
        if m.n_samples or (m.reason and not m.reason.startswith("the time"))
    }
    try:
        MeasuredCosts(costs.fingerprint, entries, costs.host_seconds).save(path)
    except OSError as error:
        tell(f"the measured times could not be saved in {path}: {error.strerror}")


def _measured(
    request: Request, fingerprint: Fingerprint, host: HostSeconds, budget_s: float, clock: str, tell: _Tell
) -> _Found:
    """Measure in a separate process; if an operator crashes it, start again without that operator."""
    crashed: dict[Signature, Measured] = {}
    content: dict[str, Any] = {
        "device": fingerprint.device,
        "threads": fingerprint.threads,
        "budget_s": budget_s,
        "clock": clock,
        "host": asdict(host) if host.forward else None,
    }
    for _ in range(_MOST_CRASHES):
        with tempfile.TemporaryDirectory(prefix="windtunnel-measure-") as folder:
            source, target = Path(folder) / "request.json", Path(folder) / "result.json"
            source.write_text(json.dumps(request.to_json() | content), encoding="utf-8")
            status, output = _run(source, target, tell)
            if target.exists():
                return _result(request, target, crashed)
            number = _tried(target)
        if status >= 0 or number is None or number >= len(request.signatures):
            break
        signature = request.signatures[number]
        crashed[signature] = Measured(reason=f"it ended its process with signal {-status}")
        request = _without(request, number)
    if "No module named 'torch'" in output:
        raise MissingFramework(
            "torch is not installed in this Python", hint="pip install 'windtunnel[torch]'"
        )
    last = output.strip().splitlines()[-1:] or [f"exit code {status}"]
    raise WindtunnelError(f"operators could not be measured on this machine: {last[0][:200]}")


def _run(source: Path, target: Path, tell: _Tell) -> tuple[int, str]:
    command = [sys.executable, "-m", "windtunnel.timing.pytorch.measure", str(source), str(target)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        environment = os.environ | {"KINETO_LOG_LEVEL": "99"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                tell(line.rstrip())
        errors.seek(0)
        return process.returncode, errors.read()


def _tried(target: Path) -> int | None:
    """Which operator was being run when the process ended."""
    try:
        return int(target.with_suffix(".trying").read_bytes())
    except (OSError, ValueError):
        return None


def _result(request: Request, target: Path, crashed: dict[Signature, Measured]) -> _Found:
    content = json.loads(target.read_text(encoding="utf-8"))
    rows = zip(request.signatures, content["entries"], strict=True)
    entries = {signature: measured_of(row) for signature, row in rows} | crashed
    host = HostSeconds(**content["host"])
    return _Found(
        entries, host, content["seconds"], content["host_measuring_seconds"], content["disturbed_share"]
    )


def _without(request: Request, number: int) -> Request:
    """The same request, in which one operator is not run. Its place stays: it is known to be unknown."""
    acts = [act for act in request.acts if act[:2] != [0, number]]
    return replace(request, acts=acts)


def _notes(found: _Found) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for signature, each in found.entries.items():
        if each.reason:
            reasons.setdefault(each.reason, []).append(signature.name)
    notes = []
    if found.disturbed_share > _BUSY:
        notes.append(
            f"this machine was busy: other programs used the processor during {found.disturbed_share:.0%} of the"
            " measurements, so the times may be too long; measure again when it is idle"
        )
    return notes + [
        f"{len(names)} operators could not be measured and are bounded by the bytes they move"
        f" ({', '.join(list(dict.fromkeys(names))[:_MOST_NAMED])}): {reason}"
        for reason, names in reasons.items()
    ]


def _threads_of(recording: Recording) -> int:
    found = recording.footer.get("threads", recording.header.get("threads", 0))
    return found if isinstance(found, int) and found > 0 else 0


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Hardware", "cpu\t")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "cpu"


def _accelerator_model(device: str) -> str:
    """As reported by the driver, without a framework."""
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return device
