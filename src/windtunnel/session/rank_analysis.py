"""Analyse one rank's recording: its memory, its communication, and how its script ended.

    RankTask, exit code ──> recording ──> RankMemory, RankCommunication ──> Finding (and CSV, snapshot); pictures later
                               └──> RankAnalysis: the finding, and what was read and played for it ──> detail for the page

Runs in its own process for every rank (a fork of the fork server), or in the caller's if there is no fork server.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.capture.task import RankTask
from windtunnel.cluster.library_buffers import LibraryBuffers, library_buffers_of
from windtunnel.cluster.rank_communication import RankCommunication, communication_of
from windtunnel.errors import CorruptFile, MissingFramework
from windtunnel.events.model import Kind, Recording
from windtunnel.exit_codes import INTERRUPTED
from windtunnel.memory.allocation_list import rank_detail
from windtunnel.memory.analysis import RankMemory, analyse_memory
from windtunnel.memory.files.memory_block import write_memory_block
from windtunnel.memory.files.snapshot_writer import write_snapshot
from windtunnel.memory.mindspore_fragments import (
    MANY_STEPS,
    is_too_long_to_repeat,
    peak_after_many_steps,
    peak_in_pages,
)
from windtunnel.memory.recorded_memory import RecordedMemory
from windtunnel.report.page.rank_detail import detail_document
from windtunnel.report.pictures.memory import draw_picture
from windtunnel.report.results.run import (
    CompiledCode,
    CompilerNote,
    DeviceResult,
    RankResult,
    Router,
    RoutingResult,
    UnknownValue,
    build_times,
    rank_result,
)
from windtunnel.session.rank_crash import crash_of
from windtunnel.session.rank_process import CANNOT_RECORD, OUR_BUG
from windtunnel.session.rank_recording import allocator_maker, recording_of
from windtunnel.session.request import RunRequest, task_of
from windtunnel.session.run_log import last_lines
from windtunnel.units import MIB, format_bytes

__all__ = [
    "Finding",
    "RankAnalysis",
    "analyse_rank",
    "detail_rank",
    "draw_pictures",
    "measure_again",
    "read_recorded",
]

_STEPS_TO_SETTLE = 5  # the first two allocate for the first time, and outputs live for two steps

_BEFORE = "options of windtunnel come before the script"
_REFUSAL_LINES = 4  # last lines of a log, where a script rejects an argument


@dataclass(frozen=True)
class Finding:
    """The result of one simulated rank."""

    result: RankResult
    communication: RankCommunication | None  # None if the rank did not finish
    code: int
    device_index: int = 0  # index of the device that the result describes


@dataclass(frozen=True)
class RankAnalysis:
    """A finding with what it was computed from, so that nothing is read or played again for the page."""

    finding: Finding
    recorded: RecordedMemory | None  # None: there is no readable recording, or level 0

    def detail(self, most: int) -> dict[str, Any]:
        """Return the allocations of the device that the finding describes, packed; at most `most` of them with names."""
        assert self.recorded is not None
        return detail_document(rank_detail(self.recorded, self.finding.device_index, most))


def analyse_rank(request: RunRequest, task: RankTask, code: int) -> RankAnalysis:
    """Analyse the recording of a rank that ended with this exit code."""
    result = RankResult(
        rank=task.rank,
        status="ok",
        device_memory_bytes=request.device.memory_bytes,
        usable_memory_bytes=request.device.usable_bytes,
    )
    try:
        recording, workspace_notes = recording_of(request, task.recording_path)
    except CorruptFile:
        failed = replace(result, status="failed", error=_explain_exit(task, code))
        return RankAnalysis(Finding(failed, None, code), None)
    outcome, device_index, recorded = recording.footer, 0, None
    if request.level >= 1 and len(recording):
        recorded = _recorded(request, recording)
        result, device_index = _measure(request, task, recorded)
    steps = int((recording.columns["kind"] == Kind.STEP).sum())
    error = _error(outcome, task, code)
    workers: str | None = outcome.get("workers")
    worker_notes: tuple[str, ...] = ()
    if workers and error is None and not (recording.columns["kind"] == Kind.ALLOC).any():
        error = workers
    elif workers:
        worker_notes = (workers,)
    crash_of(task.folder)  # removes the file; it has been read if it was needed
    result = replace(
        result,
        status="failed" if error else result.status,
        steps=steps,
        error=error,
        build_time_us=build_times(recording),
        unknown_values=tuple(
            UnknownValue(u["where"], u["what"], u["value"], u["count"])
            for u in outcome.get("unknown_values", ())
        ),
        compiled=_compiled_code(outcome),
        routing=_routing(outcome),
        notes=(
            *result.notes,
            *_routing_notes(_routing(outcome)),
            *workspace_notes,
            *outcome.get("notices", ()),
            *worker_notes,
            *_remarks(request, steps, error),
            *_argument_notes(request, task, outcome, error),
        ),
    )
    communication = (
        communication_of(recording, task.rank, task.world_size)
        if error is None and task.world_size > 1
        else None
    )
    return RankAnalysis(Finding(result, communication, code, device_index), recorded)


def _compiled_code(outcome: Mapping[str, Any]) -> CompiledCode | None:
    counted = (outcome.get("compiled") or {}).get("compiler")
    if not counted:
        return None
    counts = (counted.get(name, 0) for name in ("n_graphs", "n_graph_breaks", "n_recompilations"))
    notes = (counted.get(name, ()) for name in ("graph_breaks", "recompilations"))
    return CompiledCode(*counts, *(tuple(CompilerNote(**note) for note in each) for each in notes))


def _routing(outcome: Mapping[str, Any]) -> RoutingResult | None:
    found = outcome.get("routing")
    return RoutingResult(found["policy"], tuple(Router(**r) for r in found["routers"])) if found else None


def _routing_notes(routing: RoutingResult | None) -> list[str]:
    if routing is None:
        return []
    first, *others = sorted(routing.routers, key=lambda router: -router.experts)
    lines = first.where if not others else f"{first.where} and {len(others)} more"
    rest = [policy for policy in ("balanced", "zipf:1.2", "worst") if policy != routing.policy]
    return [
        f"which of {first.experts:,} experts a token goes to is unknown: {routing.policy} routing was assumed ({lines});"
        f" memory and time move with it, --routing {' or '.join(rest)} shows how far"
    ]


def detail_rank(request: RunRequest, recording_path: Path, device_index: int, most: int) -> dict[str, Any]:
    """Return the detail of a rank whose analysis was not kept: its recording is read and played again."""
    return detail_document(rank_detail(read_recorded(request, recording_path), device_index, most))


def read_recorded(request: RunRequest, path: Path) -> RecordedMemory:
    """Read the recording of a rank; for stages that do not get it from the analysis."""
    return _recorded(request, recording_of(request, path)[0])


def _recorded(request: RunRequest, recording: Recording) -> RecordedMemory:
    return RecordedMemory(recording, allocator_maker(request, recording), takes_maps=request.writes_page)


def measure_again(request: RunRequest, rank: int, recorded: RecordedMemory) -> RankResult:
    """Return the memory of a changed recording, or of one under another allocator: that of this request."""
    return _measure(request, task_of(request, rank), recorded)[0]


def draw_pictures(folder: Path, result: RankResult, device: DeviceResult) -> tuple[str, ...]:
    """Draw a rank's memory over time; returns notes."""
    try:
        if result.peak_bytes:
            draw_picture(folder / "memory.png", result, device, folder / "memory.svg")
    except MissingFramework as error:
        return (f"no picture was drawn: {error}",)
    except OSError as error:
        return (f"not every file of rank {result.rank} could be written: {error.strerror or error}",)
    return ()


def _measure(request: RunRequest, task: RankTask, recorded: RecordedMemory) -> tuple[RankResult, int]:
    """Return the result, and the index of the device that it describes."""
    recording = recorded.recording
    usable = request.device.usable_bytes if request.device.kind != "cpu" else None
    if usable is not None and (chosen := recording.footer.get("max_device_bytes")):
        usable = min(usable, int(chosen))  # the script set a lower limit
    buffers = library_buffers_of(recording, request.device.kind)
    if usable is not None and request.counts_library_buffers:
        usable = max(usable - buffers.n_bytes, 0)
    own = task.local_rank if request.device.kind != "cpu" else 0
    devices = {i: analyse_memory(recorded, usable, i) for i in _devices(recording, own)}
    # The tightest device decides.
    device = max(devices, key=lambda index: devices[index].peak_with_fragments_bytes)
    memory = devices.pop(device)
    result = rank_result(task.rank, memory, request.device.memory_bytes)
    in_pages = peak_in_pages(recorded, request.allocator, request.allocator_conf, device)
    notes = (
        *result.notes,
        *_device_notes(task.rank, own, device, devices),
        *_own_word_notes(request, recording, memory),
        *_page_notes(in_pages),
        *_growth_notes(request, recorded, memory, device),
        *_buffer_notes(request, buffers),
    )
    result = replace(result, notes=notes, library_buffers_bytes=buffers.n_bytes, peak_in_pages_bytes=in_pages)
    folder = Path(task.folder)
    try:
        if request.writes_blocks:
            allocator = allocator_maker(request, recording)(None)
            write_memory_block(folder / "memory_block.csv", recorded, allocator, device)
        if request.writes_snapshot:
            allocator = allocator_maker(request, recording)(None)
            write_snapshot(folder / "snapshot.pickle", recorded, allocator, device)
    except OSError as error:
        note = f"not every file of rank {task.rank} could be written: {error.strerror or error}"
        return replace(result, notes=(*result.notes, note)), device
    return result, device


def _devices(recording: Recording, own: int) -> list[int]:
    """Return the devices this rank allocates on; its own if it allocates nothing."""
    columns = recording.columns
    return np.unique(columns["device"][columns["kind"] == Kind.ALLOC]).tolist() or [own]


def _buffer_notes(request: RunRequest, buffers: LibraryBuffers) -> list[str]:
    if not buffers.n_communicators:
        return []
    plural = "s" if buffers.n_communicators > 1 else ""
    counted = (
        "subtracted from the usable memory" if request.counts_library_buffers else "not included in the peak"
    )
    return [
        f"{buffers.library} itself needs about {format_bytes(buffers.n_bytes)} for {buffers.n_communicators}"
        f" communicator{plural}; this estimate is {counted} (--library-buffers)"
    ]


def _own_word_notes(request: RunRequest, recording: Recording, memory: RankMemory) -> list[str]:
    """Note a peak counted by MindSpore itself that differs from ours."""
    printed = recording.footer.get("mindspore_facts", {}).get("used_peak_mib")
    if printed is None or request.level > 1 or abs(memory.peak_bytes // MIB - printed) <= 1:
        return []
    return [
        f"MindSpore itself counted a peak of {printed} MiB in this run, not {memory.peak_bytes // MIB} MiB; please report this"
    ]


def _page_notes(in_pages: int | None) -> list[str]:
    if not in_pages:
        return []
    return [
        f"on a real device MindSpore would print {format_bytes(in_pages)} with fragments: there it counts mapped 2 MiB"
        " pages, in a dry run the span of its blocks"
    ]


def _growth_notes(
    request: RunRequest, recorded: RecordedMemory, memory: RankMemory, device: int
) -> list[str]:
    """Note a peak with fragments that more steps would raise."""
    if not request.allocator.startswith("mindspore"):
        return []
    later = peak_after_many_steps(recorded, device)
    now = memory.peak_with_fragments_bytes
    if later is None and 3 <= memory.n_steps < _STEPS_TO_SETTLE:
        return [
            f"{memory.n_steps} steps do not show whether the peak with fragments has settled: it may still grow with"
            f" --steps {_STEPS_TO_SETTLE}"
        ]
    if later is None and is_too_long_to_repeat(recorded, device):
        return [
            f"whether the peak with fragments still grows after {memory.n_steps} steps was not checked, because a step has too"
            f" many allocations to repeat: --steps {MANY_STEPS} runs them"
        ]
    if later is None or later <= now:
        return []
    return [
        f"with fragments still grows: {format_bytes(now)} after {memory.n_steps} steps, {format_bytes(later)} if the last"
        f" step is repeated up to {MANY_STEPS} steps (--steps {MANY_STEPS} runs them)"
    ]


def _device_notes(rank: int, own: int, device: int, others: dict[int, RankMemory]) -> list[str]:
    """Describe the other devices the rank allocates on."""
    notes = []
    if own != device and own not in others:
        notes.append(
            f"rank {rank} allocates on device {device}, not on its own device {own}: is set_device missing?"
        )
    elif others:
        notes.append(f"the numbers are for device {device}, the tightest of {len(others) + 1}")
    for index, memory in sorted(others.items()):
        peak, reserved = format_bytes(memory.peak_bytes), format_bytes(memory.peak_with_fragments_bytes)
        notes.append(f"device {index}: {peak} live, {reserved} with fragments")
    return notes


# -- how it ended ------------------------------------------------------------------------------------------


def _error(outcome: dict[str, Any], task: RankTask, code: int) -> str | None:
    """Return why the script failed; None if it succeeded."""
    if code == INTERRUPTED or not outcome:
        return None if code == 0 else _explain_exit(task, code)
    if outcome["status"] == "interrupted":
        return "the script itself raised KeyboardInterrupt"
    if outcome["status"] == "failed":
        where = f" (at {outcome['where']})" if outcome.get("where") else ""
        return f"{outcome['error']}{where}"
    return None


def _explain_exit(task: RankTask, code: int) -> str:
    """Explain the end of a process that did not report an outcome itself."""
    if code == INTERRUPTED:
        return "interrupted; the report covers what ran before"
    if code == -signal.SIGKILL:
        return (
            "the script was killed (SIGKILL), on Linux often because this machine ran out of memory;"
            " the report covers what it recorded before"
        )
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return _crash(name, crash_of(task.folder))
    if code == CANNOT_RECORD:
        return _last_line(task) or f"cannot write {task.recording_path}: is the disk full?"
    if code == OUR_BUG:
        return f"windtunnel itself failed, which is a bug; please report it with {task.folder}/run.log"
    if not task.recording_path.exists():
        return _last_line(task) or f"rank {task.rank} did not start (exit code {code})"
    return f"the script called os._exit with exit code {code}"


def _crash(name: str, where: str) -> str:
    if not where:
        return f"the script crashed ({name}); the report covers what it recorded before"
    return (
        f"the script crashed ({name}) {where}: compiled code may have read tensor data there, which a dry run"
        " does not have; guard the call with `if not windtunnel.is_dry_run():`"
    )


def _last_line(task: RankTask) -> str:
    lines = _log_lines(task)
    return next((line.removeprefix("windtunnel: ") for line in reversed(lines) if line.strip()), "")


def _log_lines(task: RankTask) -> list[str]:
    try:
        return last_lines(Path(task.folder) / "run.log")
    except OSError:
        return []


def _remarks(request: RunRequest, steps: int, error: str | None) -> list[str]:
    found = []
    if steps == 0 and error is None:
        found.append("the script took no optimizer step: the memory is that of the part it ran")
    elif steps in (1, 2) and request.level >= 1 and error is None:
        found.append(
            "fewer than 3 optimizer steps ran: optimizer state is allocated in step 1, so the peak may be understated"
        )
    if request.is_list and request.ranks:
        were = "was" if len(request.ranks) == 1 else "were"
        found.append(
            f"{len(request.ranks)} of {request.world_size} ranks {were} simulated; choose others with --ranks"
        )
    return found


def _argument_notes(
    request: RunRequest, task: RankTask, outcome: dict[str, Any], error: str | None
) -> list[str]:
    """Note windtunnel options after the script, if the script rejected them or read no arguments at all."""
    ours = request.misplaced
    others = _without(request.arguments, ours)
    module = ["-m"] if request.is_module else []
    command = shlex.join(["windtunnel", "run", *ours, *module, request.script, *others])
    if error is None:
        if not outcome.get("has_unread_arguments"):
            return []
        told = f"the script never read its arguments ({shlex.join(request.arguments)})"
        return [f"{told}; {_BEFORE}: {command}" if ours else told]
    said = [error, *_log_lines(task)[-_REFUSAL_LINES:]]
    names = [word.partition("=")[0] for word in ours if word.startswith("--")]
    refused = [name for name in names if any(name in line or f"'{name[2:]}'" in line for line in said)]
    return [f"{refused[0]} may have been meant for windtunnel: {_BEFORE}: {command}"] if refused else []


def _without(arguments: Sequence[str], ours: Sequence[str]) -> list[str]:
    """Remove `ours`, which are among the arguments in the same order."""
    left = list(ours)
    return [word for word in arguments if not (left and word == left[0] and left.pop(0))]
