"""Turn the recording of a rank into a program for the timeline, given all durations.

    recording, Durations ──> rows that take time or wait ──> StepProgram

Building the model takes no time here. Its communication calls are kept, because one rank may still be building when
its peer has begun: pipeline stages exchange their shapes in this way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from windtunnel.cluster.groups import groups_of
from windtunnel.cluster.program import StepProgram, Work
from windtunnel.events.model import Kind, Phase, Recording
from windtunnel.events.scalars import peer_of

__all__ = ["Durations", "program_of"]

_WITH_PEER = ("c10d.send", "c10d.recv")
_COMMUNICATION = (Kind.COLLECTIVE, Kind.WAIT)
_WORK = np.zeros(256, np.uint8)
for _kind, _work in (
    (Kind.OP, Work.KERNEL), (Kind.COLLECTIVE, Work.COLLECTIVE), (Kind.WAIT, Work.WAIT), (Kind.SYNC, Work.SYNC),
    (Kind.EVENT_RECORD, Work.RECORD_EVENT), (Kind.EVENT_WAIT, Work.WAIT_EVENT), (Kind.STEP, Work.STEP),
    (Kind.MODULE_ENTER, Work.HOST),
):  # fmt: skip
    _WORK[_kind] = _work


@dataclass(frozen=True)
class Durations:
    """Durations of all rows of one recording."""

    seconds: np.ndarray  # float64 [row]: on the device
    host_seconds: np.ndarray  # float64 [row]: of the thread that issues it
    calls: Mapping[tuple[int, int], float]  # (group id, signature) -> seconds on the network


def program_of(
    recording: Recording, rank: int, durations: Durations, *, is_synchronous: bool = False
) -> StepProgram:
    """Return the program of one rank. Rows up to the end of building the model take no time."""
    columns = recording.columns
    work = _WORK[columns["kind"]]
    keep = work != 0
    keep &= ~((columns["kind"] == Kind.OP) & (columns["device"] < 0))  # host tensors beside a device
    keep &= (columns["kind"] != Kind.MODULE_ENTER) | (durations.host_seconds > 0)
    after_build = columns["phase"] != Phase.BUILD
    begun = int(np.argmax(after_build)) if after_build.any() else len(keep)
    keep[:begun] &= np.isin(columns["kind"][:begun], _COMMUNICATION)
    rows = np.flatnonzero(keep)
    work, kind = work[rows], columns["kind"][rows]
    is_built = rows >= begun
    seconds, host = durations.seconds[rows] * is_built, durations.host_seconds[rows] * is_built
    work[(kind == Kind.OP) & (seconds <= 0)] = Work.HOST

    found = groups_of(recording, rank)
    groups, index_of = found.members, found.index_of
    names = tuple(map(recording.name, found.names))
    group, peer = np.full(len(rows), -1, np.int32), np.full(len(rows), -1, np.int32)
    peers = [peer_of(s.scalars) for s in recording.signatures]
    is_call = kind == Kind.COLLECTIVE
    value, extra = columns["value"][rows], columns["extra"][rows]
    for at in np.flatnonzero(is_call).tolist():
        signature, id = int(value[at]), int(extra[at])
        seconds[at] = durations.calls.get((id, signature), 0.0) * is_built[at]
        group[at] = index_of.get(id, -1)
        name = recording.signatures[signature].name
        if name in _WITH_PEER:
            work[at] = Work.SEND if name == "c10d.send" else Work.RECEIVE
            peer[at] = peers[signature]
    lone = is_call & ((group < 0) | np.isin(group, [i for i, ranks in enumerate(groups) if len(ranks) < 2]))
    work[lone] = Work.HOST  # a group of one: nothing is sent
    return StepProgram(
        rank, rows, work, columns["stream"][rows].astype(np.int32), columns["subject"][rows], seconds, host, group, peer,
        _sequences(recording)[rows], is_call & (columns["role"][rows] == 1), groups, names, is_synchronous,
    )  # fmt: skip


def _sequences(recording: Recording) -> np.ndarray:
    """For each call, the number of earlier calls in its group, or to or from its peer."""
    columns = recording.columns
    rows = np.flatnonzero(columns["kind"] == Kind.COLLECTIVE)
    found = np.zeros(len(columns["kind"]), np.int64)
    channels = [_channel_of(s.name, s.scalars) for s in recording.signatures]
    counts: dict[tuple[int, str], int] = {}
    calls = zip(rows.tolist(), columns["extra"][rows].tolist(), columns["value"][rows].tolist(), strict=True)
    for row, group, signature in calls:
        key = (group, channels[signature])
        found[row] = counts[key] = counts.get(key, -1) + 1
    return found


def _channel_of(name: str, scalars: str) -> str:
    return f"{name} {peer_of(scalars)}" if name in _WITH_PEER else ""
