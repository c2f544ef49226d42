"""What a compiler makes of the operators of a compiled function: one kernel of neighbours that only move bytes.

    recording, footer["compiled"] ──> runs of fusible rows ──> FusedKernel (first row, rows, bytes)

A dry run executes compiled code eagerly, so its recording holds every operator by itself. In the fused kernel a value
that only its neighbours read never reaches memory: the bytes left are what enters and what someone reads later. What
forward keeps for backward alone is assumed to be recomputed there, as the compiler's partitioner does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from windtunnel.events.model import Kind, Phase, Recording, Signature
from windtunnel.timing.operators.operator_classes import FUSIBLE, class_of
from windtunnel.timing.roofline.moved_bytes import bytes_of

__all__ = ["FusedKernel", "fused_kernels"]


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """Rows of the recording that run as one kernel, at the place of the first."""

    rows: tuple[int, ...]
    n_bytes: int


@dataclass(slots=True)
class _Run:
    region: int
    phase: int
    rows: list[int] = field(default_factory=list)
    read: dict[int, int] = field(default_factory=dict)  # storage from outside -> bytes
    made: dict[int, int] = field(default_factory=dict)  # storage of a result -> bytes
    written: set[int] = field(default_factory=set)  # storages that reach memory

    @property
    def n_bytes(self) -> int:
        return sum(self.read.values()) + sum(self.made[storage] for storage in self.written)


def fused_kernels(recording: Recording) -> list[FusedKernel]:
    """Every run of at least two rows that a compiler would fuse, in order of rows."""
    region_of = _regions(recording)
    if region_of is None:
        return []
    return [
        FusedKernel(tuple(run.rows), run.n_bytes) for run in _runs(recording, region_of) if len(run.rows) > 1
    ]


def _runs(recording: Recording, region_of: Callable[[int], int]) -> list[_Run]:
    columns = recording.columns
    rows = np.flatnonzero(np.isin(columns["kind"], (Kind.OP, Kind.COLLECTIVE)))
    kinds, values, phases = (columns[name][rows].tolist() for name in ("kind", "value", "phase"))
    is_fusible = [class_of(signature.name) in FUSIBLE for signature in recording.signatures]
    runs: list[_Run] = []
    made_by: dict[int, _Run] = {}
    current: _Run | None = None
    for row, kind, value, phase in zip(rows.tolist(), kinds, values, phases, strict=True):
        region = region_of(row) if kind == Kind.OP and is_fusible[value] else -1
        if region < 0:
            current = None
        elif current is None or (current.region, current.phase) != (region, phase):
            current = _Run(region, phase)
            runs.append(current)
        _note(recording, row, recording.signatures[value], phase, current, made_by)
    return runs


def _note(
    recording: Recording,
    row: int,
    signature: Signature,
    phase: int,
    run: _Run | None,
    made_by: dict[int, _Run],
) -> None:
    inputs, outputs = _storages(recording.inputs, row), _storages(recording.outputs, row)
    for i, storage in enumerate(inputs):
        maker = made_by.get(storage)
        if (
            maker is not None
            and maker is not run
            and not (maker.phase == Phase.FORWARD and phase == Phase.BACKWARD)
        ):
            maker.written.add(storage)
        if run is not None and maker is not run and i < len(signature.inputs):
            run.read.setdefault(storage, bytes_of(signature.inputs[i]))
    if run is None:
        for storage in outputs:
            made_by.pop(storage, None)  # written over by somebody else
        return
    run.rows.append(row)
    for storage, spec in zip(outputs, signature.outputs, strict=False):
        run.made[storage] = bytes_of(spec)
        made_by[storage] = run
    if not outputs and inputs and made_by.get(inputs[0]) is not run and signature.inputs:  # in place
        run.made[inputs[0]] = bytes_of(signature.inputs[0])
        run.written.add(inputs[0])


def _regions(recording: Recording) -> Callable[[int], int] | None:
    """Row -> number of the compiled function or module it belongs to, -1 for none; None if nothing was compiled."""
    compiled = recording.footer.get("compiled")
    if not compiled:
        return None
    functions = {tuple(pair): i for i, pair in enumerate(compiled.get("functions", ()))}
    of_frame = [functions.get((frame.file, frame.function), -1) for frame in recording.frames]
    paths = sorted(compiled.get("modules", ()), key=len)  # the outermost first: it holds the others
    of_name = [_place(paths, name, len(functions)) for name in recording.names]
    frames, modules = recording.columns["frame"].tolist(), recording.columns["module"].tolist()

    def region(row: int) -> int:
        if frames[row] >= 0 and of_frame[frames[row]] >= 0:
            return of_frame[frames[row]]
        return of_name[modules[row]] if modules[row] >= 0 else -1

    return region


def _place(paths: list[str], name: str, first: int) -> int:
    """Of the compiled module that a module is or lies in; -1: none."""
    for i, path in enumerate(paths):
        if path == "" or name == path or name.startswith(path + "."):
            return first + i
    return -1


def _storages(ragged: tuple[np.ndarray, np.ndarray], row: int) -> list[int]:
    offsets, ids = ragged
    return ids[offsets[row] : offsets[row + 1]].tolist()
