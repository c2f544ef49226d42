"""From a request to a result: start the ranks, read their recordings, analyse, write the files of a run.

RunRequest ──> one process per rank ──> recordings ──> RankMemory ──> RunResult ──> report.json, CSV, pictures
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel import __version__
from windtunnel.capture.task import RankTask
from windtunnel.commands.rank import CANNOT_RECORD, OUR_BUG
from windtunnel.commands.rank_process import INTERRUPTED, Listener, run_ranks
from windtunnel.devices import DeviceProfile
from windtunnel.errors import CorruptFile, MissingFramework, UsageError
from windtunnel.events.file import read_recording
from windtunnel.events.model import Kind, Recording
from windtunnel.memory import Allocator
from windtunnel.memory.analysis import RankMemory, analyse_memory
from windtunnel.memory.memory_block_file import write_memory_block
from windtunnel.memory.snapshot_file import write_snapshot
from windtunnel.report.facts import five_facts
from windtunnel.report.json_file import write_report
from windtunnel.report.picture import draw_picture
from windtunnel.report.result import (
    DeviceResult,
    RankResult,
    RunResult,
    UnknownValue,
    build_times,
    rank_result,
)
from windtunnel.units import format_bytes

__all__ = [
    "RunRequest",
    "Simulation",
    "check_request",
    "conf_of_environment",
    "prepare_folder",
    "simulate",
    "summarise",
    "task_of",
]

# Where the settings of an allocator come from: the first variable that is set.
_CONF_VARIABLES = {
    "cuda": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    "cuda-expandable": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    "npu": ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
}

_FILES_OF_RUN = ("report.json", "report.html")
_FILES_OF_RANK = (
    "run.log", "recording.arrows", "memory.png", "memory.svg", "memory_block.csv", "snapshot.pickle",
    "trace_view.json", "task.json",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the user asked for."""

    script: str
    arguments: tuple[str, ...]
    is_module: bool
    device: DeviceProfile
    allocator: str
    allocator_conf: str
    ranks: tuple[int, ...]
    world_size: int
    nproc_per_node: int
    is_launched: bool
    level: int
    max_steps: int | None
    writes_blocks: bool
    writes_snapshot: bool
    folder: Path
    n_jobs: int


@dataclass(frozen=True)
class Simulation:
    """What came of a request: the report, and how each rank's process ended."""

    result: RunResult
    codes: tuple[int, ...]

    @property
    def exit_code(self) -> int:
        """0 fits, 1 our bug, 2 could not record, 3 the script failed, 4 does not fit, 130 interrupted."""
        for code, answer in ((INTERRUPTED, INTERRUPTED), (OUR_BUG, 1), (CANNOT_RECORD, 2)):
            if code in self.codes:
                return answer
        if any(rank.status == "failed" for rank in self.result.ranks):
            return 3
        return 0 if self.result.fits else 4


def conf_of_environment(allocator: str) -> str:
    """The allocator settings of the user's environment, as torch reads them."""
    names = _CONF_VARIABLES.get(allocator.partition(":")[0].strip(), ())
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def check_request(request: RunRequest) -> None:
    """Say what is wrong now, not after the run."""
    if request.level not in (0, 1, 2, 3):
        raise UsageError(f"there is no level {request.level}", hint="use level 0 (runs) or 1 (memory)")
    if request.level > 1:
        raise UsageError(f"level {request.level} is not built yet", hint="use level 0 (runs) or 1 (memory)")
    if request.max_steps is not None and request.max_steps < 1:
        raise UsageError(
            f"steps is {request.max_steps}, and a run has at least 1",
            hint="--steps 3 shows the peak of training",
        )
    if request.n_jobs < 1:
        raise UsageError(f"jobs is {request.n_jobs}, and at least 1 is needed", hint="leave --jobs out")
    n_cards, per_node = request.world_size, request.nproc_per_node
    if n_cards < 1:
        raise UsageError(f"the world size is {n_cards}, and a job has at least 1 card", hint="--world-size 8")
    if per_node < 1 or (n_cards > per_node and n_cards % per_node):
        raise UsageError(
            f"world size {n_cards} is not a multiple of the {per_node} cards of one machine",
            hint="change --world-size or --nproc-per-node",
        )
    wrong = [rank for rank in request.ranks if not 0 <= rank < n_cards]
    if wrong:
        raise UsageError(
            f"there is no rank {wrong[0]}: world size {n_cards} has ranks 0 to {n_cards - 1}",
            hint=f"raise --world-size to {wrong[0] + 1} or more" if wrong[0] > 0 else "count ranks from 0",
        )
    Allocator.from_spec(request.allocator, conf=request.allocator_conf)


def prepare_folder(folder: Path, force: bool) -> None:
    """Make the output folder, or say why it cannot be used. Removes only what windtunnel wrote."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--out {folder} is a file", hint="name a folder")
        if folder.is_dir() and any(folder.iterdir()):
            if not force:
                raise UsageError(
                    f"--out {folder} is not empty",
                    hint="add --force to replace an earlier run in it, or name another",
                )
            _remove_earlier_run(folder)
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".windtunnel-write-test"
        probe.write_text("", encoding="utf-8")
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write to --out {folder}: {error.strerror or error}",
            hint="name another folder with --out",
        ) from error


def _remove_earlier_run(folder: Path) -> None:
    for name in _FILES_OF_RUN:
        (folder / name).unlink(missing_ok=True)
    for rank in folder.iterdir():
        if re.fullmatch(r"rank\d+", rank.name) and rank.is_dir() and not rank.is_symlink():
            for name in _FILES_OF_RANK:
                (rank / name).unlink(missing_ok=True)
            if not any(rank.iterdir()):
                rank.rmdir()


def simulate(request: RunRequest, listen: Listener) -> Simulation:
    """Run every requested rank and write the files of the run."""
    tasks = [task_of(request, rank) for rank in request.ranks]
    return summarise(request, tasks, run_ranks(tasks, request.n_jobs, listen))


def summarise(request: RunRequest, tasks: Sequence[RankTask], codes: Sequence[int]) -> Simulation:
    """Analyse what the ranks recorded, and write report.json whatever happened to them."""
    results = tuple(_rank_result(request, task, code) for task, code in zip(tasks, codes, strict=True))
    device = DeviceResult(request.device.id, request.device.memory_bytes)
    result = RunResult(__version__, request.level, request.world_size, device, request.allocator, results)
    try:
        write_report(request.folder / "report.json", result)
        for task, rank in zip(tasks, results, strict=True):
            with (Path(task.folder) / "run.log").open("a", encoding="utf-8") as log:
                log.write("\n".join(five_facts(rank, device)) + "\n")
    except OSError as error:
        note = f"files of this run could not be written: {error.strerror or error}"
        result = replace(result, ranks=tuple(replace(r, notes=(*r.notes, note)) for r in results))
        codes = [code or CANNOT_RECORD for code in codes]
    return Simulation(result, tuple(codes))


def task_of(request: RunRequest, rank: int) -> RankTask:
    folder = request.folder / f"rank{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    return RankTask(
        request.script, request.arguments, request.is_module, request.device, request.allocator,
        request.allocator_conf, rank, request.world_size, request.nproc_per_node, request.is_launched,
        request.level, request.max_steps, request.writes_blocks or request.writes_snapshot,
        str(folder.resolve()),
    )  # fmt: skip


# -- one rank ----------------------------------------------------------------------------------------------


def _rank_result(request: RunRequest, task: RankTask, code: int) -> RankResult:
    result = RankResult(
        rank=task.rank,
        status="ok",
        device_memory_bytes=request.device.memory_bytes,
        usable_memory_bytes=request.device.usable_bytes,
    )
    try:
        recording = read_recording(task.recording_path)
    except CorruptFile:
        return replace(result, status="failed", error=_last_words(task, code))
    outcome = recording.footer
    if request.level >= 1 and len(recording):
        result = _measure(request, task, recording)
    steps = int((recording.columns["kind"] == Kind.STEP).sum())
    error = _error(outcome, task, code)
    return replace(
        result,
        status="failed" if error else result.status,
        steps=steps,
        error=error,
        build_time_us=build_times(recording),
        unknown_values=tuple(
            UnknownValue(u["where"], u["what"], u["value"], u["count"])
            for u in outcome.get("unknown_values", ())
        ),
        notes=(*result.notes, *outcome.get("notices", ()), *_remarks(request, steps, error)),
    )


def _measure(request: RunRequest, task: RankTask, recording: Recording) -> RankResult:
    def make_allocator(device_bytes: int | None) -> Any:
        version = ".".join(str(recording.header.get("torch", "2.13")).split(".")[:2])
        return Allocator.from_spec(
            request.allocator, torch=version, conf=request.allocator_conf, device_bytes=device_bytes
        )

    usable = request.device.usable_bytes if request.device.kind != "cpu" else None
    own = task.local_rank if request.device.kind != "cpu" else 0
    cards = {card: analyse_memory(recording, make_allocator, usable, card) for card in _cards(recording, own)}
    device = max(cards, key=lambda card: cards[card].peak_with_fragments_bytes)  # the tightest card decides
    memory = cards.pop(device)
    result = rank_result(task.rank, memory, request.device.memory_bytes)
    result = replace(result, notes=(*result.notes, *_card_notes(task.rank, own, device, cards)))
    folder = Path(task.folder)
    try:
        if request.writes_blocks:
            write_memory_block(folder / "memory_block.csv", recording, make_allocator(None), device)
        if request.writes_snapshot:
            write_snapshot(folder / "snapshot.pickle", recording, make_allocator(None), device)
        for name in ("memory.png", "memory.svg") if memory.peak_bytes else ():
            draw_picture(folder / name, result, DeviceResult(request.device.id, request.device.memory_bytes))
    except MissingFramework as error:
        return replace(result, notes=(*result.notes, f"no picture was drawn: {error}"))
    except OSError as error:
        note = f"not every file of rank {task.rank} could be written: {error.strerror or error}"
        return replace(result, notes=(*result.notes, note))
    return result


def _cards(recording: Recording, own: int) -> list[int]:
    """The cards this rank allocates on; its own if it allocates on none."""
    columns = recording.columns
    return np.unique(columns["device"][columns["kind"] == Kind.ALLOC]).tolist() or [own]


def _card_notes(rank: int, own: int, device: int, others: dict[int, RankMemory]) -> list[str]:
    """What a reader of one card's numbers must know about the rank's other cards."""
    notes = []
    if own != device and own not in others:
        notes.append(f"rank {rank} allocates on card {device}, not on its own, {own}: is set_device missing?")
    elif others:
        notes.append(f"the numbers are of card {device}, the tightest of {len(others) + 1}")
    for card, memory in sorted(others.items()):
        peak, reserved = format_bytes(memory.peak_bytes), format_bytes(memory.peak_with_fragments_bytes)
        notes.append(f"card {card}: {peak} live, {reserved} with fragments")
    return notes


# -- how it ended ------------------------------------------------------------------------------------------


def _error(outcome: dict[str, Any], task: RankTask, code: int) -> str | None:
    """None if the script ended well."""
    if code == INTERRUPTED or not outcome:
        return None if code == 0 else _last_words(task, code)
    if outcome["status"] == "interrupted":
        return "the script raised KeyboardInterrupt by itself"
    if outcome["status"] == "failed":
        where = f" (at {outcome['where']})" if outcome.get("where") else ""
        return f"{outcome['error']}{where}"
    return None


def _last_words(task: RankTask, code: int) -> str:
    """Why a process left no word of its own."""
    if code == INTERRUPTED:
        return "interrupted; what ran before is reported"
    if code == -signal.SIGKILL:
        return (
            "the script was killed (SIGKILL), on Linux often because this machine ran out of memory;"
            " what it recorded before is reported"
        )
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"the script crashed ({name}); what it recorded before is reported"
    if code == CANNOT_RECORD:
        return _last_line(task) or f"cannot write {task.recording_path}: is the disk full?"
    if code == OUR_BUG:
        return f"windtunnel itself failed, which is a bug: please report {task.folder}/run.log"
    if not task.recording_path.exists():
        return _last_line(task) or f"rank {task.rank} did not start (exit code {code})"
    return f"the script left Python at once with exit code {code} (os._exit)"


def _last_line(task: RankTask) -> str:
    try:
        lines = (Path(task.folder) / "run.log").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("windtunnel: ") for line in reversed(lines) if line.strip()), "")


def _remarks(request: RunRequest, steps: int, error: str | None) -> list[str]:
    found = []
    if steps == 0 and error is None:
        found.append("the script never took an optimizer step: the memory is of what it did run")
    elif steps in (1, 2) and request.level >= 1 and error is None:
        found.append(
            "fewer than 3 optimizer steps ran: optimizer state is born in step 1, so the peak may come later"
        )
    if len(request.ranks) < request.world_size:
        found.append(
            f"{len(request.ranks)} of {request.world_size} ranks were simulated: choose others with --ranks"
        )
    return found
