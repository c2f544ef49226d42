"""report.json: the whole result for programs to read, written and read back.

    RunResult ──> write_report ──> report.json ──> read_report ──> RunResult

The file appears under its name only when it is whole: a reader never meets half of it.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.cluster.matching import Mismatch
from windtunnel.cluster.mesh_axes import MeshAxis
from windtunnel.errors import CorruptFile
from windtunnel.foreign_files import parse_json, read_at_most
from windtunnel.isolation.changes import KINDS, FileChange, Files
from windtunnel.memory.analysis import Moment, OutOfMemory, Timeline
from windtunnel.memory.attribution import LiveTensors, ModuleShare, RoleBytes
from windtunnel.report.json_time import (
    rank_time_document,
    rank_time_of_document,
    time_document,
    time_of_document,
)
from windtunnel.report.record_types import check_record
from windtunnel.report.result import SCHEMA, DeviceResult, RankResult, RunResult, UnknownValue
from windtunnel.report.whole_file import whole_file

__all__ = ["rank_document", "read_report", "report_text", "run_fields", "write_report"]

_MOST_BYTES = 1 << 30  # a report of a million ranks has a tenth
_MOST_RANKS = 10_000_000  # ten times the largest machine there is
_ROW_OF_NUMBERS = re.compile(r"\[\s+(-?\d+(?:,\s+-?\d+)*)\s+\]")


def report_text(result: RunResult) -> str:
    """The report as JSON text."""
    document = run_fields(result)
    document["ranks"] = [rank_document(rank) for rank in result.ranks]
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    return _ROW_OF_NUMBERS.sub(lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text) + "\n"


def run_fields(result: RunResult) -> dict[str, Any]:
    """What the report says of the whole run; `ranks` is still empty."""
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
        "time": time_document(result.time),
        "mesh": [asdict(axis) for axis in result.mesh],
        "files": None if result.files is None else asdict(result.files),
    }


def write_report(path: Path, result: RunResult) -> None:
    """Write report.json in one go."""
    text = report_text(result)
    with whole_file(Path(path)) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def read_report(path: Path) -> RunResult:
    """Read a report.json back; fields of later versions are ignored."""
    try:
        document = parse_json(read_at_most(path, _MOST_BYTES).decode("utf-8"))
        if document["schema"] != SCHEMA:
            raise CorruptFile(
                f"{path} has schema {document['schema']}, and this windtunnel reads schema {SCHEMA}"
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
            time=time_of_document(document.get("time")),
            mesh=tuple(
                MeshAxis(axis["name"], axis["size"], axis["stride"]) for axis in document.get("mesh", ())
            ),
            files=_files_of(document.get("files")),
        )
        check_record(result)
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
            f"{path} is not a report of windtunnel: {type(error).__name__} {error!s:.200}"
        ) from error


def _files_of(document: dict[str, Any] | None) -> Files | None:
    if document is None:
        return None
    known = {f.name: document[f.name] for f in fields(Files) if f.name in document}
    changes = [{f.name: change[f.name] for f in fields(FileChange)} for change in document["changes"]]
    unknown = {change["what"] for change in changes} - set(KINDS)
    if unknown:
        raise ValueError(f"a file that was {min(unknown)}")
    return Files(
        **{
            **known,
            "changes": tuple(FileChange(**c) for c in changes),
            "notes": tuple(document.get("notes", ())),
        }
    )


def _check_ranks(result: RunResult) -> None:
    """Whoever counts up to the world size, or looks up the rank that stands for another, relies on these."""
    world = result.world_size
    numbers = {rank.rank for rank in result.ranks}
    told = {rank.rank for rank in result.ranks if rank.status != "same_as"}
    if world > _MOST_RANKS:
        raise ValueError(f"a world of {world:,} ranks")
    if len(numbers) < len(result.ranks) or max(numbers, default=-1) >= world:
        raise ValueError(f"its ranks are not {len(result.ranks):,} different ones of {world:,}")
    if any(rank.status == "same_as" and rank.same_as not in told for rank in result.ranks):
        raise ValueError("a rank is shown by one that is not there")
    if result.mesh and math.prod(max(1, axis.size) for axis in result.mesh) != world:
        raise ValueError(f"the axes of its mesh do not make {world:,} ranks")


def rank_document(rank: RankResult) -> dict[str, Any]:
    """What the report says of one rank."""
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
    document["notes"] = list(rank.notes)
    document["time"] = rank_time_document(rank.time)
    return document


def _short_document(rank: RankResult) -> dict[str, Any]:
    """The fixed fields only: what is told of the representative need not be told thousands of times."""
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
    known["notes"] = tuple(document.get("notes", ()))
    known["time"] = rank_time_of_document(document.get("time"))
    return RankResult(**known)


def _bytes_named(record: dict[str, Any]) -> dict[str, Any]:
    """In the file a count of bytes is called `bytes`."""
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
    columns = [document[name] for name in ("event", "step", "allocated_bytes", "reserved_bytes")]
    roles = [document["role_bytes"][name] for name in names]
    if len({len(column) for column in columns + roles}) != 1:
        raise ValueError("the columns of a timeline differ in length")
    by_role = np.array(roles, np.int64).reshape(len(names), -1).T
    return Timeline(*(np.array(column, np.int64) for column in columns), by_role)
