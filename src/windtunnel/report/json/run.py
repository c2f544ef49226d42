"""report.json: the whole result as JSON, written and read back.

    RunResult ──> write_report ──> report.json ──> read_report ──> RunResult

The file gets its name only when it is complete. For a large job it has one entry for all ranks that do the same work;
reading it back gives a result for every rank again.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.cluster.matching import Mismatch
from windtunnel.cluster.mesh_axes import MeshAxis
from windtunnel.cluster.step_time import RankTime
from windtunnel.errors import CorruptFile
from windtunnel.foreign_files import parse_json, read_at_most
from windtunnel.isolation.file_changes import KINDS, FileChange, Files
from windtunnel.memory.analysis import Moment, OutOfMemory, Timeline
from windtunnel.memory.attribution import LiveTensors, ModuleShare, RoleBytes
from windtunnel.memory.step_parts import PartMemory
from windtunnel.report.rank_spans import rank_spans, ranks_in
from windtunnel.report.record_types import check_record
from windtunnel.report.results.run import (
    SCHEMA,
    CompiledCode,
    CompilerNote,
    DeviceResult,
    RankResult,
    Remedy,
    Router,
    RoutingResult,
    RunResult,
    UnknownValue,
    same_as,
)
from windtunnel.report.results.time import RankTimeResult, TimeResult
from windtunnel.whole_file import whole_file

__all__ = ["LISTED_IN_FULL", "rank_document", "read_report", "report_text", "run_fields", "write_report"]

_MOST_BYTES = 1 << 30  # ten times the report of a million ranks
_MOST_RANKS = 10_000_000  # ten times the largest existing machine
_MODULES_WITH_TIMES = 400  # of a rank: the longest
LISTED_IN_FULL = 1024  # ranks; of a larger job only those that were simulated
_ROW_OF_NUMBERS = re.compile(r"\[\s+(-?\d+(?:,\s+-?\d+)*)\s+\]")


def report_text(result: RunResult) -> str:
    """Return the report as JSON text."""
    document = run_fields(result)
    document["ranks"] = _rank_documents(result)
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    return _ROW_OF_NUMBERS.sub(lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text) + "\n"


def _rank_documents(result: RunResult) -> list[dict[str, Any]]:
    """Return every rank; for a large job every simulated rank, with the ranks it represents."""
    if result.world_size <= LISTED_IN_FULL:
        return [rank_document(rank) for rank in result.ranks]
    members: dict[int, list[int]] = {}
    for rank in result.ranks:
        members.setdefault(rank.rank if rank.same_as is None else rank.same_as, []).append(rank.rank)
    return [
        rank_document(rank)
        | {"n_ranks": len(members[rank.rank]), "stands_for": list(map(list, rank_spans(members[rank.rank])))}
        for rank in result.ranks
        if rank.status != "same_as"
    ]


def run_fields(result: RunResult) -> dict[str, Any]:
    """Return the fields of the whole run; `ranks` is still empty."""
    return {
        "schema": SCHEMA,
        "windtunnel": result.windtunnel,
        "level": result.level,
        "world_size": result.world_size,
        "fits": result.fits,
        "device": asdict(result.device),
        "allocator": result.allocator,
        "ranks": [],
        "mismatches": [asdict(mismatch) for mismatch in result.mismatches],
        "time": _time_document(result.time),
        "mesh": [asdict(axis) for axis in result.mesh],
        "files": None if result.files is None else asdict(result.files),
        "verdict": result.verdict,
        "advice": [asdict(remedy) for remedy in result.advice],
        "notes": list(result.notes),
        "framework": result.framework,
    }


def write_report(path: Path, result: RunResult) -> None:
    """Write report.json."""
    text = report_text(result)
    with whole_file(Path(path)) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def read_report(path: Path) -> RunResult:
    """Read a report.json back; fields of later versions are ignored. Raises CorruptFile."""
    try:
        document = parse_json(read_at_most(path, _MOST_BYTES).decode("utf-8"))
        if not isinstance(document, dict):
            raise ValueError(f"it contains {document!r:.60}, not the fields of a report")
        if document["schema"] != SCHEMA:
            raise CorruptFile(
                f"{path} has schema {document['schema']}, but this version of windtunnel reads schema {SCHEMA}"
            )
        result = RunResult(
            windtunnel=document["windtunnel"],
            level=document["level"],
            world_size=document["world_size"],
            device=DeviceResult(**document["device"]),
            allocator=document["allocator"],
            ranks=tuple(_rank_of(rank) for rank in document["ranks"]),
            mismatches=tuple(
                Mismatch(tuple(found["ranks"]), found["sentence"]) for found in document.get("mismatches", ())
            ),
            time=_time_of_document(document.get("time")),
            mesh=tuple(
                MeshAxis(axis["name"], axis["size"], axis["stride"]) for axis in document.get("mesh", ())
            ),
            files=_files_of(document.get("files")),
            advice=tuple(
                Remedy(**{f.name: remedy[f.name] for f in fields(Remedy) if f.name in remedy})
                for remedy in document.get("advice", ())
            ),
            framework=document.get("framework", "torch"),
        )
        check_record(result)
        result = replace(result, ranks=_all_ranks(result, document["ranks"]))
        _check_ranks(result)
        return result
    except FileNotFoundError:
        raise CorruptFile(f"there is no report at {path}", hint="run `windtunnel run` first") from None
    except (
        OSError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise CorruptFile(
            f"{path} is not a windtunnel report: {_in_words(error)}",
            hint="run the script again with --force to replace it",
        ) from error


def _in_words(error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"it is truncated or not JSON at line {error.lineno}, column {error.colno} ({error.msg})"
        case UnicodeDecodeError():
            return f"byte {error.start:,} is not valid UTF-8"
        case OSError():
            return (error.strerror or str(error)).lower()
        case KeyError():
            return f"it has no field {error.args[0]!r:.60}"
        case RecursionError():
            return "its values are nested too deeply"
        case ValueError():
            return f"{error!s:.200}"
    return f"one of its fields has the wrong type ({error!s:.200})"


def _all_ranks(result: RunResult, documents: list[dict[str, Any]]) -> tuple[RankResult, ...]:
    """Return the listed ranks, and those they represent."""
    if not any("stands_for" in document for document in documents):
        return result.ranks
    if result.world_size > _MOST_RANKS:
        raise ValueError(f"its world size is {result.world_size:,}")
    ranks: list[RankResult] = []
    n_left = result.world_size
    for rank, document in zip(result.ranks, documents, strict=True):
        spans = document["stands_for"]
        for first, last, step in spans:
            if not (0 <= first <= last < result.world_size and step >= 1):
                raise ValueError(f"rank {rank.rank} represents {[first, last, step]}")
            n_left -= (last - first) // step + 1
            if n_left < 0:
                raise ValueError(f"it has more ranks than its world size of {result.world_size:,}")
        found = ranks_in(spans)
        if rank.rank not in found:
            raise ValueError(f"rank {rank.rank} does not represent itself")
        ranks += (rank if number == rank.rank else same_as(number, rank) for number in found)
    return tuple(sorted(ranks, key=lambda rank: rank.rank))


def _files_of(document: dict[str, Any] | None) -> Files | None:
    if document is None:
        return None
    known = {f.name: document[f.name] for f in fields(Files) if f.name in document}
    changes = [{f.name: change[f.name] for f in fields(FileChange)} for change in document["changes"]]
    unknown = {change["what"] for change in changes} - set(KINDS)
    if unknown:
        raise ValueError(f"unknown change of a file: {min(unknown)}")
    return Files(
        **{
            **known,
            "changes": tuple(FileChange(**c) for c in changes),
            "notes": tuple(document.get("notes", ())),
        }
    )


def _check_ranks(result: RunResult) -> None:
    """Check what other code relies on when it iterates over ranks or looks up representatives."""
    world = result.world_size
    numbers = {rank.rank for rank in result.ranks}
    simulated = {rank.rank for rank in result.ranks if rank.status != "same_as"}
    if world > _MOST_RANKS:
        raise ValueError(f"its world size is {world:,}")
    if len(numbers) < len(result.ranks) or max(numbers, default=-1) >= world:
        raise ValueError(f"its {len(result.ranks):,} ranks are not distinct ranks below {world:,}")
    if any(rank.status == "same_as" and rank.same_as not in simulated for rank in result.ranks):
        raise ValueError("a rank is represented by a missing one")
    if result.mesh and math.prod(max(1, axis.size) for axis in result.mesh) != world:
        raise ValueError(f"the axes of its mesh do not multiply to {world:,} ranks")


def rank_document(rank: RankResult) -> dict[str, Any]:
    """Return the fields of one rank."""
    if rank.status == "same_as":
        return _short_document(rank)
    document = {f.name: getattr(rank, f.name) for f in fields(rank)}
    document["peak_at"] = asdict(rank.peak_at) if rank.peak_at else None
    document["at_peak_bytes"] = asdict(rank.at_peak_bytes)
    document["unknown_values"] = [asdict(value) for value in rank.unknown_values]
    document["out_of_memory"] = asdict(rank.out_of_memory) if rank.out_of_memory else None
    document["at_peak_by_module"] = [_bytes_named(asdict(share)) for share in rank.at_peak_by_module]
    document["largest_at_peak"] = [_bytes_named(asdict(tensors)) for tensors in rank.largest_at_peak]
    document["timeline"] = _timeline_document(rank.timeline) if rank.timeline else None
    document["memory_by_phase"] = [asdict(part) for part in rank.memory_by_phase]
    document["notes"] = list(rank.notes)
    document["time"] = _rank_time_document(rank.time)
    document["compiled"] = asdict(rank.compiled) if rank.compiled else None
    document["routing"] = asdict(rank.routing) if rank.routing else None
    return document


def _short_document(rank: RankResult) -> dict[str, Any]:
    """Return the fixed fields only: the details of the representative are not repeated thousands of times."""
    names = [f.name for f in fields(rank)]
    document = {name: getattr(rank, name) for name in names[: names.index("error") + 1]}
    document["peak_at"] = asdict(rank.peak_at) if rank.peak_at else None
    document["at_peak_bytes"] = dict(rank.at_peak_bytes.items())
    document["unknown_values"] = []
    return document | {"fits": rank.fits}


def _rank_of(document: dict[str, Any]) -> RankResult:
    known = {f.name: document[f.name] for f in fields(RankResult) if f.name in document}
    known["peak_at"] = Moment(**document["peak_at"]) if document["peak_at"] else None
    known["at_peak_bytes"] = RoleBytes(**document["at_peak_bytes"])
    known["unknown_values"] = tuple(UnknownValue(**value) for value in document["unknown_values"])
    if found := document.get("out_of_memory"):
        known["out_of_memory"] = OutOfMemory(**(found | {"at": Moment(**found["at"])}))
    known["at_peak_by_module"] = tuple(
        ModuleShare(**_bytes_unnamed(share)) for share in document.get("at_peak_by_module", ())
    )
    known["largest_at_peak"] = tuple(_tensors_of(entry) for entry in document.get("largest_at_peak", ()))
    known["timeline"] = _timeline_of(document["timeline"]) if document.get("timeline") else None
    known["memory_by_phase"] = tuple(PartMemory(**part) for part in document.get("memory_by_phase", ()))
    known["notes"] = tuple(document.get("notes", ()))
    known["time"] = _rank_time_of_document(document.get("time"))
    known["compiled"] = _compiled_of(document["compiled"]) if document.get("compiled") else None
    known["routing"] = _routing_of(document["routing"]) if document.get("routing") else None
    return RankResult(**known)


def _routing_of(document: dict[str, Any]) -> RoutingResult:
    return RoutingResult(document["policy"], tuple(Router(**each) for each in document["routers"]))


def _compiled_of(document: dict[str, Any]) -> CompiledCode:
    kinds = ("graph_breaks", "recompilations")
    notes = {kind: tuple(CompilerNote(**note) for note in document[kind]) for kind in kinds}
    return CompiledCode(**(document | notes))


def _bytes_named(record: dict[str, Any]) -> dict[str, Any]:
    """Rename `n_bytes` to `bytes`, its name in the file."""
    return {("bytes" if name == "n_bytes" else name): value for name, value in record.items()}


def _bytes_unnamed(document: dict[str, Any]) -> dict[str, Any]:
    return {("n_bytes" if name == "bytes" else name): value for name, value in document.items()}


def _tensors_of(document: dict[str, Any]) -> LiveTensors:
    shape = document["shape"]
    return LiveTensors(**(_bytes_unnamed(document) | {"shape": None if shape is None else tuple(shape)}))


def _timeline_document(timeline: Timeline) -> dict[str, Any]:
    names = [f.name for f in fields(RoleBytes)]
    return {
        "event": timeline.event.tolist(),
        "step": timeline.step.tolist(),
        "allocated_bytes": timeline.allocated_bytes.tolist(),
        "reserved_bytes": timeline.reserved_bytes.tolist(),
        "role_bytes": {name: timeline.role_bytes[:, i].tolist() for i, name in enumerate(names)},
    }


def _timeline_of(document: dict[str, Any]) -> Timeline:
    names = [f.name for f in fields(RoleBytes)]
    event, step, allocated, reserved = columns = [
        document[name] for name in ("event", "step", "allocated_bytes", "reserved_bytes")
    ]
    known = document["role_bytes"]  # reports of earlier versions lack roles that came later
    roles = [known.get(name, [0] * len(event)) for name in names]
    if len({len(column) for column in columns + roles}) != 1:
        raise ValueError("the columns of a timeline differ in length")
    by_role = np.array(roles, np.int64).reshape(len(names), -1).T
    return Timeline(
        event=np.array(event, np.int64),
        step=np.array(step, np.int64),
        allocated_bytes=np.array(allocated, np.int64),
        reserved_bytes=np.array(reserved, np.int64),
        role_bytes=by_role,
    )


# -- times (level 3) --------------------------------------------------------------------------------------


def _time_document(time: TimeResult | None) -> dict[str, Any] | None:
    if time is None:
        return None
    return asdict(time) | {
        "model_flops_utilisation": time.model_flops_utilisation,
        "hardware_flops_utilisation": time.hardware_flops_utilisation,
    }


def _time_of_document(document: dict[str, Any] | None) -> TimeResult | None:
    if document is None:
        return None
    known = _known(TimeResult, document)
    for name in ("all_steps_seconds", "notes"):
        known[name] = tuple(known.get(name, ()))
    return TimeResult(**known)


def _rank_time_document(time: RankTimeResult | None) -> dict[str, Any] | None:
    if time is None:
        return None
    document = asdict(time)
    modules = document["profile"]["by_module"]
    document["profile"]["by_module"] = dict(list(modules.items())[:_MODULES_WITH_TIMES])
    return document


def _rank_time_of_document(document: dict[str, Any] | None) -> RankTimeResult | None:
    if document is None:
        return None
    from windtunnel.timing.step_profile import OperatorTime, StepProfile  # late: only level 3 has a profile

    profile = _known(StepProfile, document["profile"])
    profile["operators"] = tuple(OperatorTime(**_known(OperatorTime, op)) for op in profile["operators"])
    known = _known(RankTimeResult, document)
    known |= {"time": RankTime(**_known(RankTime, document["time"])), "profile": StepProfile(**profile)}
    return RankTimeResult(**known)


def _known(record: Any, document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that this version knows; those of later versions are ignored."""
    return {f.name: document[f.name] for f in fields(record) if f.name in document}
