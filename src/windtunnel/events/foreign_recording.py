"""Read a recording from elsewhere and check it: every number in range, every name a string.

    path ──> read_foreign_recording ──> Recording, or CorruptFile with the first invalid item

The checksum of a batch detects damage, but not a forged file: anyone can compute a checksum. The analyses use the numbers
in the columns as indexes, so a recording that a user names is checked once, here; one that we just made is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.errors import CorruptFile
from windtunnel.events.file import read_recording
from windtunnel.events.kinds import Kind, Phase, Role
from windtunnel.events.model import COLUMNS, Frame, Recording, Signature, TensorSpec

__all__ = ["read_foreign_recording"]

_LARGEST_SIZE = 1 << 50  # bytes or elements: a petabyte, and no device is larger
_LARGEST_ID = 1 << 62
_LARGEST_STREAM = 1 << 20
_MOST_DIMENSIONS = 64  # as torch
_MOST_RANKS = 10_000_000  # ten times the largest machine there is
_DEEPEST_STACK = 5_000  # frames: Python itself stops a program at 1,000 unless it raises the limit
_WITH_SIGNATURE = (Kind.OP, Kind.COLLECTIVE, Kind.CALL)
_WITH_NAME = (Kind.MARK, Kind.GROUP)
_OF_MODULE = (Kind.MODULE_ENTER, Kind.MODULE_EXIT, Kind.BUILD)
# The fields of headers and footers that our code reads.
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "torch": str, "framework": str, "device": str, "allocator": str, "allocator_conf": str, "script": str,
    "status": str, "rank": int, "world_size": int, "threads": int, "is_graph": bool, "deterministic": bool,
    "is_stopped": bool, "max_device_bytes": (int, type(None)), "mindspore_facts": dict, "compiled": (dict, type(None)),
}  # fmt: skip


class _Wrong(ValueError):
    """What cannot be true of a recording."""


def read_foreign_recording(path: Path) -> Recording:
    """Read a recording that may come from anywhere."""
    recording = read_recording(path)
    try:
        _check_description(recording.header, "header")
        _check_description(recording.footer, "footer")
        if not all(map(_is_text, recording.names)):
            raise _Wrong("a name is not a string")
        _check_signatures(recording.signatures)
        _check_frames(recording.frames)
        _check_rows(recording)
    except _Wrong as error:
        raise CorruptFile(f"{path} is not a windtunnel recording: {error}", hint="record it again") from error
    return recording


def _check_description(description: Any, what: str) -> None:
    if not isinstance(description, dict):
        raise _Wrong(f"its {what} is a {type(description).__name__}")
    for field, kind in _FIELDS.items():
        value = description.get(field)
        is_odd = isinstance(value, bool) and kind is int
        if field in description and (is_odd or not isinstance(value, kind)):
            raise _Wrong(f"{field} in its {what} is a {type(value).__name__}")
        if isinstance(value, int) and not 0 <= value <= _LARGEST_ID:
            raise _Wrong(f"{field} in its {what} is out of range")
    compiled = description.get("compiled") or {}
    functions, modules = compiled.get("functions", []), compiled.get("modules", [])
    if not isinstance(functions, list) or not isinstance(modules, list) or not all(map(_is_text, modules)):
        raise _Wrong(f"the compiled modules in its {what} are not names")
    if not all(isinstance(pair, list) and all(map(_is_text, pair)) for pair in functions):
        raise _Wrong(f"the compiled functions in its {what} are not names")
    if not _is_routing(description.get("routing")):
        raise _Wrong(f"the routing in its {what} is not a policy with lines")
    if not _are_compilations(compiled.get("compiler") or {}):
        raise _Wrong(f"the compilations in its {what} are not counts and lines")


def _is_routing(routing: Any) -> bool:
    if routing is None:
        return True
    if not isinstance(routing, dict) or routing.keys() != {"policy", "routers"}:
        return False
    routers = routing["routers"]
    return (
        _is_text(routing["policy"])
        and isinstance(routers, list)
        and bool(routers)
        and all(
            isinstance(router, dict)
            and router.keys() == {"where", "experts", "chosen"}
            and _is_text(router["where"])
            and _is_whole(router["experts"], 1, _LARGEST_ID)
            and _is_whole(router["chosen"], 1, _LARGEST_ID)
            for router in routers
        )
    )


def _are_compilations(compiler: Any) -> bool:
    if not isinstance(compiler, dict):
        return False
    counts = (compiler.get(name, 0) for name in ("n_graphs", "n_graph_breaks", "n_recompilations"))
    lists = [compiler.get(name, []) for name in ("graph_breaks", "recompilations")]
    if not all(isinstance(each, list) for each in lists):
        return False
    notes = [note for each in lists for note in each]
    return all(_is_whole(count, 0, _LARGEST_ID) for count in counts) and all(
        isinstance(note, dict)
        and note.keys() == {"where", "why", "count"}
        and _is_text(note["where"])
        and _is_text(note["why"])
        and _is_whole(note["count"], 0, _LARGEST_ID)
        for note in notes
    )


def _check_frames(frames: Iterable[Frame]) -> None:
    depths: list[int] = []
    for frame in frames:
        if not (_is_text(frame.file) and _is_text(frame.function) and _is_whole(frame.line, -1, 1 << 31)):
            raise _Wrong("a frame has no file, line and function")
        if not _is_whole(frame.parent, -1, len(depths) - 1):
            raise _Wrong(f"frame {len(depths)} was called by a later one")
        depths.append(depths[frame.parent] + 1 if frame.parent >= 0 else 1)
        if depths[-1] > _DEEPEST_STACK:
            raise _Wrong(f"a stack has more than {_DEEPEST_STACK:,} frames")


def _check_signatures(signatures: Iterable[Signature]) -> None:
    for signature in signatures:
        if not (_is_text(signature.name) and signature.name and _is_text(signature.scalars)):
            raise _Wrong("an operator has no name and arguments")
        for spec in (*signature.inputs, *signature.outputs):
            _check_spec(spec)


def _check_spec(spec: TensorSpec) -> None:
    shape, strides = spec.shape, spec.strides
    if len(shape) > _MOST_DIMENSIONS or len(strides) != len(shape):
        raise _Wrong(
            f"a tensor has {len(shape)} lengths and {len(strides)} strides, of {_MOST_DIMENSIONS} at most"
        )
    if not all(_is_whole(n, 0, _LARGEST_SIZE) for n in shape) or math.prod(shape) > _LARGEST_SIZE:
        raise _Wrong("a tensor has an impossible shape")
    if not all(_is_whole(n, -_LARGEST_SIZE, _LARGEST_SIZE) for n in strides) or not _is_text(spec.dtype):
        raise _Wrong("a tensor has no strides and type")


def _check_rows(recording: Recording) -> None:
    """Rows may refer to the names, operators and frames that there are."""
    columns, n_names = recording.columns, len(recording.names)
    if any(columns[name].dtype != dtype for name, dtype in COLUMNS.items()):
        raise _Wrong("a row lacks a number")
    kind, subject, value = columns["kind"], columns["subject"], columns["value"]
    _within("kind", kind, min(Kind), max(Kind))
    _within("phase", columns["phase"], min(Phase), max(Phase))
    _within("role", columns["role"], min(Role), max(Role))
    _within("module", columns["module"], -1, n_names - 1)
    _within("frame", columns["frame"], -1, len(recording.frames) - 1)
    _within("stream", columns["stream"], -1, _LARGEST_STREAM)
    _within("device", columns["device"], -1, 1 << 15)
    for name in ("subject", "value", "extra"):
        _within(name, columns[name], -1, _LARGEST_ID)
    _within("operator", value[np.isin(kind, _WITH_SIGNATURE)], 0, len(recording.signatures) - 1)
    _within("name", value[np.isin(kind, _WITH_NAME)], -1, n_names - 1)
    _within("module", subject[np.isin(kind, _OF_MODULE)], -1, n_names - 1)
    _within("name", subject[kind == Kind.PART], -1, n_names - 1)
    _within("size", value[kind == Kind.ALLOC], 0, _LARGEST_SIZE)
    for _, storages in (recording.inputs, recording.outputs):
        _within("storage", storages, -1, _LARGEST_ID)
    offsets, ranks = recording.inputs
    for row in np.flatnonzero(kind == Kind.GROUP).tolist():
        _within("rank of a group", ranks[offsets[row] : offsets[row + 1]], 0, _MOST_RANKS)


def _within(what: str, numbers: np.ndarray, least: int, most: int) -> None:
    if len(numbers):
        low, high = int(numbers.min()), int(numbers.max())
        if low < least or high > most:
            raise _Wrong(f"{what} {low if low < least else high} is not between {least} and {most}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_whole(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
