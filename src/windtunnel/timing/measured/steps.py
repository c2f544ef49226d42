"""What has to be run to time the operators of a program: one steady step of it, in order, without its repeats.

    recordings, what is known already ──> the last step's operators, allocations and frees ──> Request ──> JSON

Operators are timed in the order of the program, on memory with the same lifetimes as there: caches and the
allocator are then as the program finds them. Of an operator that comes again and again only the first few are run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from windtunnel.events.model import Kind, Phase, Recording, Role, Signature
from windtunnel.timing.measured.costs import signature_of, signature_row

__all__ = ["ActKind", "Request", "request_of", "steady_rows"]

_MOST_REPEATS = 8  # of one operator in a step
_NEXT_RECORDING = 1 << 40  # above every storage of the one before


class ActKind(IntEnum):
    """What one act is: an operator (signature, inputs, results, what its out= got), or of one storage."""

    RUN = 0
    MAKE = 1
    DROP = 2
    DROP_ALL = 3


@dataclass
class Request:
    signatures: list[Signature] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # of each, in one step
    acts: list[list[Any]] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)  # bytes of a storage
    scratch: list[int] = field(default_factory=list)  # bytes each takes beyond its results; -1: not recorded
    weights: list[int] = field(default_factory=list)  # storages whose values have both signs

    def to_json(self) -> dict[str, Any]:
        return {
            "signatures": [signature_row(each) for each in self.signatures],
            "counts": self.counts,
            "acts": self.acts,
            "sizes": [[*pair] for pair in self.sizes.items()],
            "scratch": self.scratch,
            "weights": self.weights,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Request:
        signatures = [signature_of(row) for row in content["signatures"]]
        sizes = dict(content["sizes"])
        return cls(
            signatures, content["counts"], content["acts"], sizes, content["scratch"], content["weights"]
        )


def request_of(recordings: Iterable[Recording], known: Container[Signature] = ()) -> Request:
    """Everything that is run after the models are built, but for what is known."""
    request = Request()
    index_of: dict[Signature, int] = {}
    n_runs: Counter[int] = Counter()
    for number, recording in enumerate(recordings):
        wanted = _wanted(recording, known, request, index_of)
        if wanted:
            _add(recording, wanted, request, n_runs, number * _NEXT_RECORDING)
    return request


def steady_rows(recording: Recording) -> tuple[int, int]:
    """The rows of the last step: from the end of the one before to its own."""
    kind = recording.columns["kind"]
    ends = np.flatnonzero(kind == Kind.STEP).tolist()
    after_build = recording.columns["phase"] != Phase.BUILD
    begun = int(np.argmax(after_build)) if after_build.any() else len(recording)
    if not ends:
        return begun, len(recording)
    return (ends[-2] + 1 if len(ends) > 1 else begun), ends[-1] + 1


def _wanted(
    recording: Recording, known: Container[Signature], request: Request, index_of: dict[Signature, int]
) -> dict[int, int]:
    """Signature of the recording -> signature of the request."""
    columns = recording.columns
    first, last = steady_rows(recording)
    is_op = (columns["kind"] == Kind.OP) & (columns["device"] >= 0)
    is_used = is_op & (columns["phase"] != Phase.BUILD)
    counts = np.bincount(columns["value"][first:last][is_op[first:last]], minlength=len(recording.signatures))
    wanted: dict[int, int] = {}
    for i in np.unique(columns["value"][is_used]).tolist():
        signature = recording.signatures[i]
        if signature in known:
            continue
        if signature not in index_of:
            index_of[signature] = len(request.signatures)
            request.signatures.append(signature)
            request.counts.append(0)
            request.scratch.append(-1)
        wanted[i] = index_of[signature]
        request.counts[wanted[i]] = max(request.counts[wanted[i]], int(counts[i]))
    return wanted


def _add(recording: Recording, wanted: dict[int, int], request: Request, n_runs: Any, shift: int) -> None:
    first, last = steady_rows(recording)
    acts = list(_acts(recording, range(first, last), wanted, n_runs, shift))
    rest = _first_rows(recording, {i for i, to in wanted.items() if not n_runs[to]})
    acts += _acts(recording, rest, wanted, n_runs, shift)
    if recording.header.get("device") == "cpu":  # its dry run measures the kernels of this machine
        _note_scratch(recording, wanted, request)
    touched = {s for act in acts if act[0] == ActKind.RUN for each in act[2:] for s in each}
    if request.acts:
        request.acts.append([int(ActKind.DROP_ALL)])
    request.acts += [act for act in acts if act[0] == ActKind.RUN or act[1] in touched]
    columns = recording.columns
    is_weight = (columns["kind"] == Kind.MARK) & (columns["role"] == Role.WEIGHT)
    request.weights += sorted(touched & set((columns["subject"][is_weight] + shift).tolist()))
    is_alloc = columns["kind"] == Kind.ALLOC
    storages, sizes = columns["subject"][is_alloc] + shift, columns["value"][is_alloc]
    request.sizes.update(
        (s, n) for s, n in zip(storages.tolist(), sizes.tolist(), strict=True) if s in touched
    )


def _note_scratch(recording: Recording, wanted: dict[int, int], request: Request) -> None:
    """Of each operator: the most it held at once, less what it left behind."""
    columns = recording.columns
    rows = np.flatnonzero(np.isin(columns["kind"], (Kind.ALLOC, Kind.FREE, Kind.OP)))
    parts = [columns[name][rows].tolist() for name in ("kind", "subject", "value", "extra", "role")]
    held: dict[int, int] = {}  # scratch of the operator whose row comes next
    live = highest = 0
    for kind, subject, value, extra, role in zip(*parts, strict=True):
        if kind == Kind.ALLOC and extra >= 0:
            live += value
            highest = max(highest, live)
            if role == Role.WORKSPACE:
                held[subject] = value
        elif kind == Kind.FREE:
            live -= held.pop(subject, 0)
        elif kind == Kind.OP:
            to = wanted.get(value)
            if to is not None:
                request.scratch[to] = max(request.scratch[to], highest - live + sum(held.values()))
            held.clear()
            live = highest = 0


def _first_rows(recording: Recording, signatures: set[int]) -> list[int]:
    """Where operators that the last step does not have were first run, with what was allocated for them."""
    columns = recording.columns
    is_op = (columns["kind"] == Kind.OP) & (columns["phase"] != Phase.BUILD) & (columns["device"] >= 0)
    rows = np.flatnonzero(is_op)
    values, first = np.unique(columns["value"][rows], return_index=True)
    return [
        int(rows[i]) for value, i in zip(values.tolist(), first.tolist(), strict=True) if value in signatures
    ]


def _acts(
    recording: Recording, rows: range | list[int], wanted: dict[int, int], n_runs: Any, shift: int
) -> Iterable[list[Any]]:
    columns = recording.columns
    names = ("kind", "subject", "value", "extra", "role", "device")
    if isinstance(rows, range):
        parts = [columns[name][rows.start : rows.stop].tolist() for name in names]
    else:
        parts = [columns[name][rows].tolist() for name in names]
    asked: list[int] = []  # storages that the next operator allocates
    for i, kind, subject, value, extra, role, device in zip(rows, *parts, strict=True):
        if kind == Kind.ALLOC:
            if extra < 0:
                yield [int(ActKind.MAKE), subject + shift]
            elif role != Role.WORKSPACE:
                asked.append(subject + shift)
        elif kind == Kind.FREE:
            yield [int(ActKind.DROP), subject + shift]
        elif kind == Kind.OP:
            resized, asked = asked, []
            to = wanted.get(value)
            if to is None or device < 0 or n_runs[to] >= _MOST_REPEATS:
                continue
            n_runs[to] += 1
            inputs = _storages(recording.inputs, i, shift)
            outputs = _storages(recording.outputs, i, shift)
            yield [int(ActKind.RUN), to, inputs, outputs, [s for s in resized if s not in outputs]]


def _storages(ragged: tuple[np.ndarray, np.ndarray], i: int, shift: int) -> list[int]:
    offsets, ids = ragged
    return (ids[offsets[i] : offsets[i + 1]] + shift).tolist()
