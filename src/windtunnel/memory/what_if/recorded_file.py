"""Open any file that records allocations, and find out what ran there.

snapshot.pickle | memory_block.csv[.gz] | *_validate_*.ir | recording.arrows | a run's directory
                                                                    └──> open_source ──> ReplaySource
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.devices import known_devices
from windtunnel.errors import CorruptFile, UsageError, WindtunnelError
from windtunnel.events.foreign_recording import read_foreign_recording
from windtunnel.events.model import Kind, Phase, Recording
from windtunnel.foreign_files import parse_json, read_at_most
from windtunnel.memory.allocators.cuda.alloc_conf import cuda_rules
from windtunnel.memory.attribution import short_op
from windtunnel.memory.files.kind_of_file import find_replay_files, rank_in_path
from windtunnel.memory.files.memory_block import read_memory_block, read_names
from windtunnel.memory.files.snapshot_reader import load_snapshot, tape_of_snapshot
from windtunnel.memory.mindspore_graph.execute_order import (
    find_execute_order,
    order_steps,
    read_execute_order,
)
from windtunnel.memory.mindspore_graph.ir_file import read_graph_ir
from windtunnel.memory.mindspore_graph.liveness import tape_of_program
from windtunnel.memory.mindspore_graph.program import GraphProgram, Step, program_of
from windtunnel.memory.tape import AllocationTape, TapeKind, tape_of

__all__ = ["ReplaySource", "open_source"]

_MOST_REPORT = 1 << 28  # bytes of a report.json: without it the first rank is taken
_NAMED_AT_LEAST = 0.5  # of the operators: an execute_order.csv that names fewer is of another graph
_GRAPH_NOTE = (
    "this is an estimate from the graph: it does not include kernel workspaces and scalar constants, and memory "
    "that the backend plans as one block (jit level O1 and O2) is counted operator by operator"
)
_NO_ORDER = (
    "there is no execute_order/execute_order.csv beside it, so operators run in the order of the file, which "
    "MindSpore does not keep: the peak of a graph with recomputation or a pipeline can be a third off"
)


@dataclass(frozen=True)
class ReplaySource:
    """A tape, and the allocator that served it when it was recorded."""

    path: Path
    kind: str  # "snapshot", "memory_block", "graph_ir" or "recording"
    tape: AllocationTape
    allocator: str  # as --allocator spells it
    conf: str  # the text of PYTORCH_CUDA_ALLOC_CONF it ran with
    torch: str | None  # its version; only a recording has it
    device: str | None  # as --device spells it; only a recording has it
    notes: tuple[str, ...]
    describe: Callable[[int], str]  # an event of the tape -> where in the program that was
    rank: int | None = None  # if the path contains it


def open_source(path: Path) -> ReplaySource:
    """Read a file that holds allocations; of a run's directory, the rank that needs most."""
    found = find_replay_files(path)
    if found.kind == "recording":
        file, notes = _largest_recording(path, found.files)
        return _from_recording(file, notes)
    if found.kind == "log":
        raise UsageError(
            f"{path} holds the totals of a run, not its allocations, so no allocator can be tried on it",
            hint="run it with MS_ALLOC_CONF=memory_tracker:True and give the memory_block.csv",
        )
    readers = {"snapshot": _from_snapshot, "memory_block": _from_memory_block, "graph_ir": _from_graph}
    return readers[found.kind](found.files[0])


# -- torch's snapshot --------------------------------------------------------------------------------------


def _from_snapshot(path: Path) -> ReplaySource:
    snapshot = load_snapshot(path)
    tape = tape_of_snapshot(snapshot, path)
    if not np.any(tape.event >= 0):
        raise UsageError(
            f"{path} has no trace of allocations, only their final state",
            hint="call torch.cuda.memory._record_memory_history() before the part to record",
        )
    _refuse_empty(path, tape)
    trace = max(snapshot["device_traces"], key=len)
    conf, notes = _recorded_conf(snapshot.get("allocator_settings") or {})
    return ReplaySource(
        path,
        "snapshot",
        tape,
        "cuda",
        conf,
        None,
        None,
        (*tape.notes, *notes),
        lambda event: _trace_place(trace, event),
    )


def _recorded_conf(settings: Any) -> tuple[str, tuple[str, ...]]:
    """The settings a snapshot was taken under, as conf text; older torch recorded only numbers, or none."""
    try:
        conf = settings.get("PYTORCH_CUDA_ALLOC_CONF") or ""
        conf = conf if isinstance(conf, str) and conf else _conf_of_numbers(settings)
        cuda_rules(conf, "2.13")
    except (UsageError, AttributeError, TypeError, ValueError, KeyError) as error:
        reason = error.message if isinstance(error, UsageError) else "they cannot be read"
        return "", (
            f"the recorded allocator settings are not modelled, the defaults are used instead: {reason}",
        )
    return conf, ()


def _conf_of_numbers(settings: dict[str, Any]) -> str:
    """Raises TypeError where a number is none: a value whose parts are shared can be endless to print."""
    parts = []
    if (size := _number(settings.get("max_split_size", -1))) > 0:
        parts.append(f"max_split_size_mb:{int(size) >> 20}")
    if (share := _number(settings.get("garbage_collection_threshold", 0))) > 0:
        parts.append(f"garbage_collection_threshold:{share}")
    if settings.get("expandable_segments"):
        parts.append("expandable_segments:True")
    steps = settings.get("roundup_power2_divisions") or {}
    if any(steps.values()):
        bounds = ",".join(f"{mib}:{_number(steps[mib])}" for mib in sorted(steps, key=int))
        parts.append(f"roundup_power2_divisions:[{bounds}]")
    return ",".join(parts)


def _number(value: Any) -> int | float:
    if not isinstance(value, (int, float)):
        raise TypeError(type(value).__name__)
    return value


def _trace_place(trace: list[dict[str, Any]], event: int) -> str:
    if event < 0:
        return "before the trace begins"
    where = f"entry {event + 1} of {len(trace)} of the trace"
    frames = trace[event].get("frames")
    for frame in frames if isinstance(frames, list) else ():
        file, name = (frame.get(key) if isinstance(frame, dict) else None for key in ("filename", "name"))
        if not isinstance(file, str) or not isinstance(name, str):
            continue
        file = file.replace("\\", "/")
        if file.endswith(".py") and "/site-packages/" not in file and "/torch/" not in file:
            line = frame.get("line", 0)
            line = line if isinstance(line, int) else 0
            return f"{where} ({file.rsplit('/', 1)[-1]}:{line} in {name})"
    return where


# -- MindSpore's memory_block.csv --------------------------------------------------------------------------


def _from_memory_block(path: Path) -> ReplaySource:
    tape = read_memory_block(path)
    _refuse_empty(path, tape)
    return ReplaySource(
        path,
        "memory_block",
        tape,
        "mindspore",
        "",
        None,
        None,
        tape.notes,
        lambda line: _block_place(path, line),
        rank_in_path(path),
    )


def _block_place(path: Path, line: int) -> str:
    task, node = read_names(path, line)
    name = node or task
    return f"line {line} of the file" + (f" ({name})" if name else "")


# -- MindSpore's static graph ------------------------------------------------------------------------------


def _from_graph(path: Path) -> ReplaySource:
    program = program_of(read_graph_ir(path))
    steps, order_notes = _in_order(path, program)
    tape = tape_of_program(program, steps, (_GRAPH_NOTE, *order_notes, *program.notes))
    _refuse_empty(path, tape)
    scope_at = {step.line: f"{step.op} in {step.scope}" for step in steps}
    return ReplaySource(
        path,
        "graph_ir",
        tape,
        "mindspore",
        "",
        None,
        None,
        tape.notes,
        lambda line: f"line {line} of the file ({scope_at.get(line, 'a parameter')})",
        rank_in_path(path),
    )


def _in_order(path: Path, program: GraphProgram) -> tuple[list[Step], tuple[str, ...]]:
    order = find_execute_order(path)
    if order is None:
        return program.steps, (_NO_ORDER,)
    steps, n_named = order_steps(program.steps, read_execute_order(order))
    n_steps = len(program.steps)
    if n_named < _NAMED_AT_LEAST * n_steps:
        return program.steps, (
            f"{order} names {n_named} of {n_steps} operators: it belongs to another graph",
            _NO_ORDER,
        )
    return steps, (f"operators run in the order of {order}, which names {n_named} of {n_steps}",)


# -- our own recording -------------------------------------------------------------------------------------


def _largest_recording(path: Path, found: tuple[Path, ...]) -> tuple[Path, tuple[str, ...]]:
    """The recording of a rank's directory, or of the rank of a run that needs the most memory."""
    if len(found) == 1:
        return found[0], ()
    peaks = _peaks_of_ranks(path / "report.json")
    largest = max(found, key=lambda file: peaks.get(_rank_number(file), 0))
    name = largest.parent.name
    return largest, (f"{name} of {len(found)} recorded ranks is replayed; pass {path}/rankN for another",)


def _rank_number(file: Path) -> int:
    digits = file.parent.name.removeprefix("rank")
    return int(digits) if digits.isdecimal() else 1 << 30


def _peaks_of_ranks(report: Path) -> dict[int, int]:
    try:
        ranks = parse_json(read_at_most(report, _MOST_REPORT))["ranks"]
        peaks = {rank["rank"]: rank["peak_with_fragments_bytes"] for rank in ranks}
        return {rank: peak for rank, peak in peaks.items() if type(peak) is int}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # the report only decides which rank is shown first; the recordings do without it


def _from_recording(path: Path, notes: tuple[str, ...]) -> ReplaySource:
    try:
        recording = read_foreign_recording(path)
        tape = tape_of(recording, _busiest_device(recording))
    except WindtunnelError:
        raise
    except Exception as error:  # a damaged file fails in every way there is
        raise CorruptFile(f"{path} is damaged: {type(error).__name__}", hint="record it again") from error
    if not recording.is_complete and not len(recording):
        raise CorruptFile(f"{path} was cut off before its first event", hint="record it again")
    _refuse_empty(path, tape)
    header, devices = recording.header, known_devices()
    device = header.get("device")
    default = devices[device].allocator if device in devices else "cuda"
    return ReplaySource(
        path,
        "recording",
        tape,
        header.get("allocator", default),
        header.get("allocator_conf", ""),
        ".".join(header["torch"].split(".")[:2]) if "torch" in header else None,
        device if device in devices else None,
        (*notes, *tape.notes, *_how_it_ended(recording)),
        lambda event: _moment(recording, event),
    )


def _how_it_ended(recording: Recording) -> tuple[str, ...]:
    if recording.footer.get("status", "ok") == "ok":
        return ()
    ended = "was interrupted" if recording.footer["status"] == "interrupted" else "failed"
    return (f"the script {ended}: this is what it did until then",)


def _busiest_device(recording: Recording) -> int:
    """A rank computes on one device, which need not be number 0."""
    is_alloc = recording.columns["kind"] == Kind.ALLOC
    devices = recording.columns["device"][is_alloc].astype(np.int64)
    devices, sizes = devices[devices >= 0], recording.columns["value"][is_alloc][devices >= 0]
    return int(np.bincount(devices, weights=sizes).argmax()) if len(devices) else 0


def _moment(recording: Recording, event: int) -> str:
    columns = recording.columns
    step = int(np.count_nonzero(columns["kind"][:event] == Kind.STEP)) + 1
    phase = Phase(int(columns["phase"][event])).name.lower()
    is_op = (columns["kind"] == Kind.OP) & (columns["subject"] == columns["extra"][event])
    ops = np.flatnonzero(is_op)[:1].tolist() if columns["extra"][event] >= 0 else []
    op = short_op(recording.signatures[int(columns["value"][ops[0]])].name) if len(ops) else "an allocation"
    module = recording.name(int(columns["module"][event]))
    return f"step {step}, {op}{f' in {module}' if module else ''} ({phase})"


def _refuse_empty(path: Path, tape: AllocationTape) -> None:
    if not np.any(tape.kind == TapeKind.ALLOC):
        raise UsageError(f"{path} holds no allocation on a device", hint="there is nothing to replay")
