"""What one rank's recording says: its memory, what it told other ranks, how its script ended.

    RankTask, exit code ──> recording ──> RankMemory, RankTalk ──> Finding (and CSV, snapshot); pictures later

Runs in a process of its own for every rank (a fork of the nursery), or in the caller's where there is none.
"""

from __future__ import annotations

import shlex
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.capture.task import RankTask
from windtunnel.cluster.library_buffers import LibraryBuffers, library_buffers_of
from windtunnel.cluster.talk import RankTalk, talk_of
from windtunnel.commands.executor import INTERRUPTED
from windtunnel.commands.rank import CANNOT_RECORD, OUR_BUG
from windtunnel.commands.rank_crash import crash_of
from windtunnel.commands.rank_recording import allocator_maker, recording_of
from windtunnel.commands.request import RunRequest, task_of
from windtunnel.commands.run_log import last_lines
from windtunnel.commands.run_options import misplaced_options
from windtunnel.errors import CorruptFile, MissingFramework
from windtunnel.events.model import Kind, Recording
from windtunnel.memory.analysis import RankMemory, analyse_memory
from windtunnel.memory.fragments import peak_in_pages
from windtunnel.memory.memory_block_file import write_memory_block
from windtunnel.memory.snapshot_file import write_snapshot
from windtunnel.report.picture import draw_picture
from windtunnel.report.result import DeviceResult, RankResult, UnknownValue, build_times, rank_result
from windtunnel.units import MIB, format_bytes

__all__ = ["Finding", "analyse_rank", "draw_pictures", "measure_again"]

_BEFORE = "options of windtunnel come before the script"
_REFUSAL_LINES = 4  # the last of a script that refuses an argument


@dataclass(frozen=True)
class Finding:
    """What came of one simulated rank."""

    result: RankResult
    talk: RankTalk | None  # None if the rank did not come to its end
    code: int
    card: int = 0  # that the result is of


def analyse_rank(request: RunRequest, task: RankTask, code: int) -> Finding:
    """Read the recording of a rank that ended with this exit code."""
    result = RankResult(
        rank=task.rank,
        status="ok",
        device_memory_bytes=request.device.memory_bytes,
        usable_memory_bytes=request.device.usable_bytes,
    )
    try:
        recording, workspace_notes = recording_of(request, task.recording_path)
    except CorruptFile:
        return Finding(replace(result, status="failed", error=_last_words(task, code)), None, code)
    outcome, card = recording.footer, 0
    if request.level >= 1 and len(recording):
        result, card = _measure(request, task, recording)
    steps = int((recording.columns["kind"] == Kind.STEP).sum())
    error = _error(outcome, task, code)
    crash_of(task.folder)  # read if it was needed: an empty file is nobody's business
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
        notes=(
            *result.notes,
            *workspace_notes,
            *outcome.get("notices", ()),
            *_remarks(request, steps, error),
            *_argument_notes(request, task, outcome, error),
        ),
    )
    talk = talk_of(recording, task.rank, task.world_size) if error is None and task.world_size > 1 else None
    return Finding(result, talk, code, card)


def measure_again(request: RunRequest, rank: int, recording: Recording) -> RankResult:
    """The memory of a recording that was read already, as another request or a change of it has it."""
    return _measure(request, task_of(request, rank), recording)[0]


def draw_pictures(folder: Path, result: RankResult, device: DeviceResult) -> tuple[str, ...]:
    """Draw a rank's memory over time; returns what to note about it."""
    try:
        for name in ("memory.png", "memory.svg") if result.peak_bytes else ():
            draw_picture(folder / name, result, device)
    except MissingFramework as error:
        return (f"no picture was drawn: {error}",)
    except OSError as error:
        return (f"not every file of rank {result.rank} could be written: {error.strerror or error}",)
    return ()


def _measure(request: RunRequest, task: RankTask, recording: Recording) -> tuple[RankResult, int]:
    """The result, and the card that it is of."""
    make_allocator = allocator_maker(request, recording)
    usable = request.device.usable_bytes if request.device.kind != "cpu" else None
    if usable is not None and (chosen := recording.footer.get("max_device_bytes")):
        usable = min(usable, int(chosen))  # the script itself asked for less
    buffers = library_buffers_of(recording, request.device.kind)
    if usable is not None and request.counts_library_buffers:
        usable = max(usable - buffers.n_bytes, 0)
    own = task.local_rank if request.device.kind != "cpu" else 0
    cards = {card: analyse_memory(recording, make_allocator, usable, card) for card in _cards(recording, own)}
    device = max(cards, key=lambda card: cards[card].peak_with_fragments_bytes)  # the tightest card decides
    memory = cards.pop(device)
    result = rank_result(task.rank, memory, request.device.memory_bytes)
    in_pages = peak_in_pages(recording, request.allocator, request.allocator_conf, device)
    notes = (
        *result.notes,
        *_card_notes(task.rank, own, device, cards),
        *_own_word_notes(request, recording, memory),
        *_page_notes(in_pages),
        *_buffer_notes(request, buffers),
    )
    result = replace(result, notes=notes, library_buffers_bytes=buffers.n_bytes, peak_in_pages_bytes=in_pages)
    folder = Path(task.folder)
    try:
        if request.writes_blocks:
            write_memory_block(folder / "memory_block.csv", recording, make_allocator(None), device)
        if request.writes_snapshot:
            write_snapshot(folder / "snapshot.pickle", recording, make_allocator(None), device)
    except OSError as error:
        note = f"not every file of rank {task.rank} could be written: {error.strerror or error}"
        return replace(result, notes=(*result.notes, note)), device
    return result, device


def _cards(recording: Recording, own: int) -> list[int]:
    """The cards this rank allocates on; its own if it allocates on none."""
    columns = recording.columns
    return np.unique(columns["device"][columns["kind"] == Kind.ALLOC]).tolist() or [own]


def _buffer_notes(request: RunRequest, buffers: LibraryBuffers) -> list[str]:
    if not buffers.n_communicators:
        return []
    plural = "s" if buffers.n_communicators > 1 else ""
    counted = "taken off the usable memory" if request.counts_library_buffers else "not in the peak"
    return [
        f"{buffers.library} takes about {format_bytes(buffers.n_bytes)} of its own for {buffers.n_communicators}"
        f" communicator{plural}, an estimate {counted} (--library-buffers)"
    ]


def _own_word_notes(request: RunRequest, recording: Recording, memory: RankMemory) -> list[str]:
    """MindSpore counts too: where it says another peak, the reader should know."""
    printed = recording.footer.get("mindspore_facts", {}).get("used_peak_mib")
    if printed is None or request.level > 1 or abs(memory.peak_bytes // MIB - printed) <= 1:
        return []
    return [
        f"MindSpore itself counted a peak of {printed} MiB in this run, not {memory.peak_bytes // MIB} MiB: please report this"
    ]


def _page_notes(in_pages: int | None) -> list[str]:
    if not in_pages:
        return []
    return [
        f"on a card MindSpore would print {format_bytes(in_pages)} with fragments: there it counts the 2 MiB pages it"
        " mapped, in a dry run the span of its blocks"
    ]


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
        return _crash(name, crash_of(task.folder))
    if code == CANNOT_RECORD:
        return _last_line(task) or f"cannot write {task.recording_path}: is the disk full?"
    if code == OUR_BUG:
        return f"windtunnel itself failed, which is a bug: please report {task.folder}/run.log"
    if not task.recording_path.exists():
        return _last_line(task) or f"rank {task.rank} did not start (exit code {code})"
    return f"the script left Python at once with exit code {code} (os._exit)"


def _crash(name: str, where: str) -> str:
    if not where:
        return f"the script crashed ({name}); what it recorded before is reported"
    return (
        f"the script crashed ({name}) {where}: compiled code may have read the bytes of a tensor there, which a dry run"
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
        found.append("the script never took an optimizer step: the memory is of what it did run")
    elif steps in (1, 2) and request.level >= 1 and error is None:
        found.append(
            "fewer than 3 optimizer steps ran: optimizer state is born in step 1, so the peak may come later"
        )
    if request.is_list and request.ranks:
        found.append(
            f"{len(request.ranks)} of {request.world_size} ranks were simulated: choose others with --ranks"
        )
    return found


def _argument_notes(
    request: RunRequest, task: RankTask, outcome: dict[str, Any], error: str | None
) -> list[str]:
    """An option of ours that stands after the script: said if the script refused it, or read no arguments at all."""
    ours, others = misplaced_options(request.arguments)
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
