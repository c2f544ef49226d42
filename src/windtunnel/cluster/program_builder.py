"""Turn a rank's recording into a program for the timeline, given what everything costs.

    recording, Durations ──> rows that take time or wait ──> StepProgram

What happened while the model was built is left out. Calls are still counted from the start, so that peers agree on
which call is which.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.cluster.program import StepProgram, Work
from windtunnel.events.model import Kind, Phase, Recording

__all__ = ["Durations", "is_recomputed", "program_of"]

_WORK = np.zeros(256, np.uint8)
for _kind, _work in (
    (Kind.OP, Work.KERNEL), (Kind.COLLECTIVE, Work.COLLECTIVE), (Kind.WAIT, Work.WAIT), (Kind.SYNC, Work.SYNC),
    (Kind.EVENT_RECORD, Work.RECORD_EVENT), (Kind.EVENT_WAIT, Work.WAIT_EVENT), (Kind.STEP, Work.STEP),
    (Kind.MODULE_ENTER, Work.HOST),
):  # fmt: skip
    _WORK[_kind] = _work


@dataclass(frozen=True)
class Durations:
    """Seconds of everything in one recording."""

    device: np.ndarray  # float64 [signature]: on the device
    host_forward: np.ndarray  # float64 [signature]: of the program's thread
    host_backward: np.ndarray  # float64 [signature]: of autograd's thread
    calls: dict[tuple[int, int], float]  # (group id, signature) -> seconds on the network
    per_call: float = 0.0  # host seconds of starting a collective
    per_module: float = 0.0  # host seconds of calling a module


def program_of(
    recording: Recording, rank: int, durations: Durations, *, is_synchronous: bool = False
) -> StepProgram:
    """The program of one rank, from the first row after the model was built."""
    columns = recording.columns
    kind = columns["kind"]
    work = _WORK[kind]
    is_host_op = (kind == Kind.OP) & (columns["device"] < 0)
    keep = (work != 0) & ~is_host_op
    if not durations.per_module:
        keep &= kind != Kind.MODULE_ENTER
    begun = np.flatnonzero(columns["phase"] != Phase.BUILD)
    keep[: int(begun[0]) if len(begun) else len(kind)] = False
    rows = np.flatnonzero(keep)
    work, kind = work[rows], kind[rows]
    value, extra = columns["value"][rows], columns["extra"][rows]
    is_op, is_call = kind == Kind.OP, kind == Kind.COLLECTIVE

    seconds, host = np.zeros(len(rows)), np.zeros(len(rows))
    seconds[is_op] = durations.device[value[is_op]]
    is_backward = columns["phase"][rows] == Phase.BACKWARD
    for mask, table in (
        (is_op & ~is_backward, durations.host_forward),
        (is_op & is_backward, durations.host_backward),
    ):
        host[mask] = table[value[mask]]
    work[is_op & (seconds <= 0)] = Work.HOST
    host[is_call] = durations.per_call
    host[kind == Kind.MODULE_ENTER] = durations.per_module

    groups, names, index_of = _groups(recording, rank)
    group, peer = np.full(len(rows), -1, np.int32), np.full(len(rows), -1, np.int32)
    sequences = _sequences(recording)
    sequence = sequences[rows]
    peers = [_peer_of(s.scalars) for s in recording.signatures]
    for at in np.flatnonzero(is_call).tolist():
        signature, id = int(value[at]), int(extra[at])
        seconds[at] = durations.calls.get((id, signature), 0.0)
        group[at] = index_of.get(id, -1)
        name = recording.signatures[signature].name
        if name in ("c10d.send", "c10d.recv"):
            work[at] = Work.SEND if name == "c10d.send" else Work.RECEIVE
            peer[at] = peers[signature]
    lone = is_call & ((group < 0) | np.isin(group, [i for i, ranks in enumerate(groups) if len(ranks) < 2]))
    work[lone] = Work.HOST  # a group of one: nothing travels
    return StepProgram(
        rank, rows, work, columns["stream"][rows].astype(np.int32), columns["subject"][rows], seconds, host, group, peer,
        sequence, is_call & (columns["role"][rows] == 1), groups, names, is_synchronous,
    )  # fmt: skip


def is_recomputed(recording: Recording) -> np.ndarray:
    """Which rows lie in a forward pass that autograd runs again."""
    columns = recording.columns
    is_edge = columns["extra"] == 1
    depth = np.cumsum(
        (is_edge & (columns["kind"] == Kind.MODULE_ENTER)).astype(np.int64)
        - (is_edge & (columns["kind"] == Kind.MODULE_EXIT))
    )
    return depth > 0


def _groups(
    recording: Recording, rank: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...], dict[int, int]]:
    """Members and names of the groups this rank is in, and the place of each by its id."""
    offsets, ranks = recording.inputs
    groups: list[tuple[int, ...]] = []
    names: list[str] = []
    index_of: dict[int, int] = {}
    for row in np.flatnonzero(recording.columns["kind"] == Kind.GROUP).tolist():
        members = tuple(ranks[offsets[row] : offsets[row + 1]].tolist())
        if rank in members:
            index_of[int(recording.columns["subject"][row])] = len(groups)
            groups.append(members)
            names.append(recording.name(int(recording.columns["value"][row])))
    return tuple(groups), tuple(names), index_of


def _sequences(recording: Recording) -> np.ndarray:
    """For each call, how many of its kind came before: in its group, or on its way to or from a peer."""
    columns = recording.columns
    rows = np.flatnonzero(columns["kind"] == Kind.COLLECTIVE)
    found = np.zeros(len(columns["kind"]), np.int64)
    ways = [_way_of(s.name, s.scalars) for s in recording.signatures]
    counts: dict[tuple[int, str], int] = {}
    calls = zip(rows.tolist(), columns["extra"][rows].tolist(), columns["value"][rows].tolist(), strict=True)
    for row, group, signature in calls:
        key = (group, ways[signature])
        found[row] = counts[key] = counts.get(key, -1) + 1
    return found


def _way_of(name: str, scalars: str) -> str:
    return f"{name} {_peer_of(scalars)}" if name in ("c10d.send", "c10d.recv") else ""


def _peer_of(scalars: str) -> int:
    word = next((w for w in scalars.split() if w.startswith("peer=")), "peer=-1")
    return int(word[5:])
