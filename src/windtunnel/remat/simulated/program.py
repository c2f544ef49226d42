"""A recording as what rematerialisation sees of a program: calls, memory, and what autograd saves.

    Recording ──> read_program ──> Program(actions in order)

Only a run made for it tells all of this: what autograd saves cannot be told from what backward reads, because what
the program itself still holds then cannot be evicted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from windtunnel.errors import UsageError
from windtunnel.events.model import Kind, Phase, Recording, Signature

__all__ = [
    "Action",
    "Alloc",
    "BackwardEnd",
    "Call",
    "Free",
    "Load",
    "Op",
    "Program",
    "Return",
    "Save",
    "Step",
    "Unsave",
    "read_program",
]

_LAST_KIND = max(Kind)


class Call(NamedTuple):
    """An operator begins; it ends at the next `Return`."""

    row: int  # of the recording
    name: str
    signature: int
    inputs: tuple[int, ...]  # a storage for each tensor of the signature; -1: not on the device
    written: tuple[int, ...]
    outputs: tuple[int, ...]
    flags: int
    parts: tuple[int, ...]  # signatures of the operators it is made of on the device


class Return(NamedTuple):
    row: int


class Op(NamedTuple):
    """The device runs an operator: a part of a call, or of backward, or of the optimizer."""

    row: int
    signature: int


class Alloc(NamedTuple):
    row: int
    storage: int
    n_bytes: int


class Free(NamedTuple):
    """The program releases a storage; autograd may still hold it."""

    row: int
    storage: int


class Save(NamedTuple):
    row: int
    handle: int
    storage: int
    is_result: bool = True  # of the call that has just returned; else the next one saves it


class Load(NamedTuple):
    """Autograd needs what it saved; until its `Free`, its id in the program is `storage`."""

    row: int
    handle: int
    storage: int
    is_new: bool  # a number the program did not have before


class Unsave(NamedTuple):
    row: int
    handle: int


class BackwardEnd(NamedTuple):
    row: int


class Step(NamedTuple):
    row: int
    number: int


Action = Call | Return | Op | Alloc | Free | Save | Load | Unsave | BackwardEnd | Step


@dataclass(frozen=True)
class Program:
    actions: tuple[Action, ...]
    signatures: tuple[Signature, ...]
    recording: Recording
    n_steps: int
    vanishing: frozenset[int]  # storages of sharded weights, which come and go

    def place(self, row: int) -> str:
        """Where in the program a row of the recording was: `layers.3.mlp, backward`."""
        columns = self.recording.columns
        module = self.recording.name(int(columns["module"][row]))
        return ", ".join(filter(None, (module, Phase(int(columns["phase"][row])).name.lower())))


def read_program(recording: Recording) -> Program:
    """The actions of one rank on its device; refuses a recording without what autograd saves."""
    kinds = recording.columns["kind"]
    has_backward = np.any((kinds == Kind.OP) & (recording.columns["phase"] == Phase.BACKWARD))
    if has_backward and not np.any((kinds == Kind.CALL) | (kinds == Kind.SAVE)):
        raise UsageError(
            "this recording was made by `windtunnel run`, which does not record what autograd saves",
            hint=f"record it again with: {_command(recording)}",
        )
    rows = _rows(recording)
    actions = list(_recorded(rows))
    n_steps = int(np.count_nonzero(kinds == Kind.STEP))
    resized = [row for row in rows if row.kind == Kind.RESIZE]
    vanishing = frozenset(storage for row in resized for storage in (row.subject, row.value))
    return Program(tuple(actions), recording.signatures, recording, n_steps, vanishing)


def _command(recording: Recording) -> str:
    header = recording.header
    device = ["--device", str(header["device"])] if header.get("device") else []
    module = ["-m"] if header.get("is_module") else []
    script = str(header.get("script") or "train.py")
    return shlex.join(
        ["windtunnel", "remat", *device, *module, script, *map(str, header.get("arguments") or ())]
    )


# -- rows of the rank's own device ------------------------------------------------------------------------------


class _Row(NamedTuple):
    row: int
    kind: int
    subject: int
    value: int
    extra: int
    phase: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    name: str  # of an operator


def _rows(recording: Recording) -> list[_Row]:
    """The rows that matter, without those of other devices' memory."""
    columns = recording.columns
    kinds, devices = columns["kind"], columns["device"]
    of_memory = (kinds == Kind.ALLOC) | (kinds == Kind.FREE)
    wanted = np.zeros(256, bool)
    wanted[
        [Kind.OP, Kind.ALLOC, Kind.FREE, Kind.STEP, Kind.COLLECTIVE, *range(Kind.SAVE, _LAST_KIND + 1)]
    ] = True
    keep = np.flatnonzero(wanted[kinds] & (~of_memory | (devices == _main_device(recording))))
    lists = [columns[name][keep].tolist() for name in ("kind", "subject", "value", "extra", "phase")]
    inputs, outputs = _tuples(recording.inputs, keep), _tuples(recording.outputs, keep)
    names = [signature.name for signature in recording.signatures]
    has_name = (Kind.OP, Kind.CALL, Kind.COLLECTIVE)
    return [
        _Row(index, kind, subject, value, extra, phase, read, made, names[value] if kind in has_name else "")
        for index, kind, subject, value, extra, phase, read, made in zip(
            keep.tolist(), *lists, inputs, outputs, strict=True
        )
    ]


def _main_device(recording: Recording) -> int:
    """The device with the most allocated bytes."""
    columns = recording.columns
    born = columns["kind"] == Kind.ALLOC
    if not np.any(born):
        return 0
    devices, places = np.unique(columns["device"][born], return_inverse=True)
    return int(devices[np.argmax(np.bincount(places, weights=columns["value"][born]))])


def _tuples(ragged: tuple[np.ndarray, np.ndarray], rows: np.ndarray) -> Iterator[tuple[int, ...]]:
    offsets, ids = ragged
    every = ids.tolist()
    for start, end in zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True):
        yield tuple(every[start:end])


# -- a run made for rematerialisation ---------------------------------------------------------------------------


def _recorded(rows: list[_Row]) -> Iterator[Action]:
    calls = _calls_in(rows)
    vanishing = _handles_of_resized_storages(rows)
    made_for_load = {row.value for row in rows if row.kind == Kind.LOAD and row.extra == 1}
    for row in rows:
        match row.kind:
            case Kind.OP:
                yield Op(row.row, row.value)
            case Kind.ALLOC:
                if row.subject not in made_for_load:
                    yield Alloc(row.row, row.subject, row.value)
            case Kind.FREE:
                yield Free(row.row, row.subject)
            case Kind.CALL:
                yield calls[row.subject]
            case Kind.RETURN:
                yield Return(row.row)
            case Kind.COLLECTIVE if row.outputs and row.phase != Phase.BACKWARD:
                # It writes into its outputs; in backward nothing is recorded.
                yield Call(row.row, row.name, row.value, row.inputs, row.outputs, (), 0, ())
                yield Return(row.row)
            case Kind.SAVE if row.subject not in vanishing:
                yield Save(row.row, row.subject, row.value, row.extra == 1)
            case Kind.LOAD if row.subject not in vanishing:
                yield Load(row.row, row.subject, row.value, row.extra == 1)
            case Kind.UNSAVE if row.subject not in vanishing:
                yield Unsave(row.row, row.subject)
            case Kind.BACKWARD_END:
                yield BackwardEnd(row.row)
            case Kind.STEP:
                yield Step(row.row, row.subject)


def _calls_in(rows: list[_Row]) -> dict[int, Call]:
    """Each call, with what is known only at its end."""
    found: dict[int, Call] = {}
    begun: _Row | None = None
    parts: list[int] = []
    for row in rows:
        if row.kind == Kind.CALL:
            begun, parts = row, []
            found[row.subject] = Call(row.row, row.name, row.value, row.inputs, (), (), row.extra, ())
        elif row.kind == Kind.OP and begun is not None:
            parts.append(row.value)
        elif row.kind == Kind.RETURN and begun is not None and begun.subject == row.subject:
            found[row.subject] = Call(
                begun.row, begun.name, begun.value, begun.inputs, row.inputs, row.outputs, begun.extra, tuple(parts)
            )  # fmt: skip
            begun = None
    return found


def _handles_of_resized_storages(rows: list[_Row]) -> set[int]:
    """Handles whose storage was emptied and filled again meanwhile (sharded weights): autograd saved the storage, not
    what was in it."""
    saved = {row.subject: row.value for row in rows if row.kind == Kind.SAVE}
    loads = [row for row in rows if row.kind == Kind.LOAD]
    copies = {row.value for row in loads if row.extra == 1}
    return {
        row.subject for row in loads if row.extra != 1 and row.value not in copies and row.value != saved[row.subject]
    }  # fmt: skip
