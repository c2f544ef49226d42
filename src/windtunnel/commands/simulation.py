"""From a request to a result: start the ranks, read their recordings, analyse, write the files of a run.

    RunRequest ──> one process per rank ──> recordings ──> RankMemory ──> RunResult ──> report.json, CSV, pictures
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from windtunnel import __version__
from windtunnel.capture.task import RankTask
from windtunnel.devices import DeviceProfile
from windtunnel.errors import CorruptFile, MissingFramework, UsageError
from windtunnel.events.file import read_recording
from windtunnel.events.model import Recording
from windtunnel.memory import Allocator
from windtunnel.memory.analysis import analyse_memory
from windtunnel.memory.memory_block_file import write_memory_block
from windtunnel.memory.snapshot_file import write_snapshot
from windtunnel.report.facts import five_facts
from windtunnel.report.json_file import write_report
from windtunnel.report.picture import draw_picture
from windtunnel.report.result import DeviceResult, RankResult, RunResult, UnknownValue, build_times, failed_rank, rank_result

__all__ = ["RunRequest", "prepare_folder", "simulate", "summarise", "task_of"]


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


# (rank, "line" | "step", text or number): what a caller may show while ranks run
Listener = Callable[[int, str, Any], None]


def prepare_folder(folder: Path, force: bool) -> None:
    """Make the output folder, or say why it cannot be used. Never removes anything windtunnel did not write."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file", hint="name a folder")
    try:
        if folder.is_dir() and any(folder.iterdir()):
            if not force:
                raise UsageError(f"--out {folder} is not empty", hint="--force replaces an earlier run in it, or name another folder")
            for old in (*folder.glob("rank*/"), folder / "report.json", folder / "report.html", *folder.glob("memory*.*")):
                _remove(old)
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".windtunnel-write-test"
        probe.write_text("", encoding="utf-8")
        probe.unlink()
    except OSError as error:
        raise UsageError(f"cannot write to --out {folder}: {error.strerror or error}", hint="name another folder") from error


def _remove(path: Path) -> None:
    if path.is_dir() and (path / "recording.arrows").exists():
        shutil.rmtree(path)
    elif path.is_file():
        path.unlink()


def simulate(request: RunRequest, listen: Listener) -> RunResult:
    """Run every requested rank and write the files of the run."""
    tasks = [task_of(request, rank) for rank in request.ranks]
    with ThreadPoolExecutor(max_workers=max(1, min(request.n_jobs, len(tasks)))) as pool:
        codes = list(pool.map(lambda task: _run_process(task, listen), tasks))
    return summarise(request, tasks, codes)


def summarise(request: RunRequest, tasks: list[RankTask], codes: list[int]) -> RunResult:
    """Analyse what the ranks recorded, and write report.json whatever happened to them."""
    results = tuple(_rank_result(request, task, code) for task, code in zip(tasks, codes, strict=True))
    device = DeviceResult(request.device.id, request.device.memory_bytes)
    result = RunResult(__version__, request.level, request.world_size, device, request.allocator, results)
    write_report(request.folder / "report.json", result)
    for task, rank in zip(tasks, results, strict=True):
        with (Path(task.folder) / "run.log").open("a", encoding="utf-8") as log:
            log.write("\n".join(five_facts(rank, device)) + "\n")
    return result


def task_of(request: RunRequest, rank: int) -> RankTask:
    folder = request.folder / f"rank{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    return RankTask(
        request.script, request.arguments, request.is_module, request.device, request.allocator,
        request.allocator_conf, rank, request.world_size, request.nproc_per_node, request.is_launched,
        request.level, request.max_steps, request.writes_blocks or request.writes_snapshot, str(folder.resolve()),
    )  # fmt: skip


# -- one process per rank -----------------------------------------------------------------------------------------


def _run_process(task: RankTask, listen: Listener) -> int:
    """Run a rank in a fresh interpreter; its output goes to run.log and to the listener as it comes."""
    folder = Path(task.folder)
    task_file = folder / "task.json"
    task_file.write_text(task.to_json(), encoding="utf-8")
    read_end, write_end = os.pipe()
    command = [sys.executable, "-u", "-m", "windtunnel.commands.rank", str(task_file), str(write_end)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(write_end,))
    os.close(write_end)
    assert process.stdout is not None
    steps = threading.Thread(target=_listen_to_steps, args=(read_end, task.rank, listen), daemon=True)
    steps.start()
    try:
        _copy_output(process.stdout, folder / "run.log", task.rank, listen)
        return process.wait()
    except KeyboardInterrupt:
        return _wait_after_interrupt(process)
    finally:
        steps.join(timeout=1)
        task_file.unlink(missing_ok=True)


def _copy_output(output: IO[bytes], log_path: Path, rank: int, listen: Listener) -> None:
    with log_path.open("wb") as log:
        for line in output:
            log.write(line)
            log.flush()
            listen(rank, "line", line.decode("utf-8", errors="replace").rstrip("\n"))


def _listen_to_steps(read_end: int, rank: int, listen: Listener) -> None:
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            listen(rank, "step", int(line))


def _wait_after_interrupt(process: subprocess.Popen[bytes]) -> int:
    """The rank got the same Ctrl-C: give it time to close its recording."""
    try:
        process.wait(timeout=20)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()
    return 130


# -- analysis -----------------------------------------------------------------------------------------------------


def _rank_result(request: RunRequest, task: RankTask, code: int) -> RankResult:
    try:
        recording = read_recording(task.recording_path)
    except CorruptFile:
        return failed_rank(task.rank, _last_words(task, code))
    outcome = recording.footer
    if request.level >= 1 and len(recording):
        result = _measure(request, task, recording)
    else:
        result = RankResult(rank=task.rank, status="ok", steps=outcome.get("steps", 0),
                            device_memory_bytes=request.device.memory_bytes,
                            usable_memory_bytes=request.device.usable_bytes)  # fmt: skip
    status, error = _status(result, outcome, task, code)
    return replace(
        result,
        status=status,
        error=error,
        build_time_us=build_times(recording),
        unknown_values=tuple(
            UnknownValue(u["where"], u["what"], u["value"], u["count"]) for u in outcome.get("unknown_values", ())
        ),
        notes=(*result.notes, *outcome.get("notices", ()), *_remarks(request, result, outcome)),
    )


def _measure(request: RunRequest, task: RankTask, recording: Recording) -> RankResult:
    def make_allocator(device_bytes: int | None) -> Any:
        version = ".".join(str(recording.header.get("torch", "2.13")).split(".")[:2])
        return Allocator.from_spec(request.allocator, torch=version, conf=request.allocator_conf, device_bytes=device_bytes)

    usable = request.device.usable_bytes if request.device.kind != "cpu" else None
    device = task.local_rank if request.device.kind != "cpu" else 0
    memory = analyse_memory(recording, make_allocator, usable, device)
    result = rank_result(task.rank, memory, request.device.memory_bytes)
    folder = Path(task.folder)
    if request.writes_blocks:
        write_memory_block(folder / "memory_block.csv", recording, make_allocator(None), device)
    if request.writes_snapshot:
        write_snapshot(folder / "snapshot.pickle", recording, make_allocator(None), device)
    return _with_picture(request, result, folder)


def _with_picture(request: RunRequest, result: RankResult, folder: Path) -> RankResult:
    device = DeviceResult(request.device.id, request.device.memory_bytes)
    try:
        for name in ("memory.png", "memory.svg"):
            draw_picture(folder / name, result, device)
    except MissingFramework as error:
        return replace(result, notes=(*result.notes, f"no picture was drawn: {error}"))
    return result


def _status(result: RankResult, outcome: dict[str, Any], task: RankTask, code: int) -> tuple[str, str | None]:
    if not outcome:
        return "failed", _last_words(task, code)
    if outcome["status"] in ("failed", "interrupted"):
        where = f" (at {outcome['where']})" if outcome.get("where") else ""
        return "failed", f"{outcome['error']}{where}"
    return result.status, None


def _last_words(task: RankTask, code: int) -> str:
    if code == 130:
        return "interrupted: what ran before is reported"
    if code < 0:
        return f"the process of rank {task.rank} was killed by signal {-code}; what it recorded before is reported"
    return f"rank {task.rank} did not start (exit code {code}): see {task.folder}/run.log"


def _remarks(request: RunRequest, result: RankResult, outcome: dict[str, Any]) -> list[str]:
    found = []
    if outcome.get("status") == "ok" and outcome.get("steps", 0) == 0:
        found.append("the script never took an optimizer step: the memory is of what it did run")
    elif outcome.get("steps", 0) in (1, 2) and request.level >= 1:
        found.append("fewer than 3 optimizer steps ran: optimizer state is born in step 1, so the peak may come later")
    if len(request.ranks) < request.world_size:
        found.append(f"{len(request.ranks)} of {request.world_size} ranks were simulated: choose others with --ranks")
    return found


