"""The work of one rank on its host, streams and peers, in program order, with the duration of each element.

    recording, seconds of each signature ──> StepProgram ──> timeline (all ranks together)

A program knows no frameworks and no cost formulas: all durations are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

__all__ = ["Lane", "LaneKind", "RankTimeline", "Stalls", "StepProgram", "Work"]


class Work(IntEnum):
    """What an element of a program is."""

    KERNEL = 1  # host_seconds on the host, then seconds on its stream
    HOST = 2  # host_seconds only: a view, an allocation
    COLLECTIVE = 3  # together with its peers, on the communication lane of its group
    SEND = 4
    RECEIVE = 5
    WAIT = 6  # the stream waits for a collective (on a CPU: the program does)
    SYNC = 7  # the host waits for a stream, or with stream -1 for the device
    RECORD_EVENT = 8
    WAIT_EVENT = 9  # a stream (-1: the host) waits for an event
    STEP = 10  # an optimizer step ended


class LaneKind(IntEnum):
    HOST = 0
    STREAM = 1
    COMMUNICATION = 2


@dataclass(frozen=True, slots=True)
class Lane:
    """Something that executes one element at a time: a row of a trace."""

    kind: LaneKind
    name: str  # "stream 0", "tp all_reduce (8 ranks)"
    number: int  # of the stream, or of the rank's group


@dataclass(frozen=True)
class StepProgram:
    """One rank's work after the model was built. Parallel arrays, one element per operation issued."""

    rank: int
    row: np.ndarray  # int64: of the recording
    work: np.ndarray  # uint8, a Work
    stream: np.ndarray  # int32
    subject: np.ndarray  # int64: collective id, event id, number of the step; else -1
    seconds: np.ndarray  # float64, on the device or the network
    host_seconds: np.ndarray  # float64
    group: np.ndarray  # int32: index into `groups` of a collective, send or receive; else -1
    peer: np.ndarray  # int32: global rank of the other end of a send or receive; else -1
    sequence: (
        np.ndarray
    )  # int64: number of the call in its group, or to or from its peer, since the program began
    is_async: np.ndarray  # bool: the program holds a handle to wait on
    groups: tuple[tuple[int, ...], ...]  # global ranks of each group of this rank
    group_names: tuple[str, ...]
    is_synchronous: bool = False  # a CPU: the host does the work itself, one thing after the other

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def peers(self) -> tuple[int, ...]:
        """Global ranks this one sends to or receives from."""
        found = np.unique(self.peer).tolist()
        return tuple(peer for peer in found if peer >= 0)

    @cached_property
    def called_groups(self) -> tuple[int, ...]:
        """Indexes in `groups` of those with collective calls."""
        return tuple(np.unique(self.group[self.work == Work.COLLECTIVE]).tolist())


@dataclass(frozen=True)
class Stalls:
    """Times in which a stream was stalled by others. Parallel arrays."""

    element: np.ndarray  # int64: of the program, the one that waited
    stream: np.ndarray  # int32
    start: np.ndarray  # float64
    end: np.ndarray
    cause: np.ndarray  # int64: the collective, send or receive it waited for; -1: kernels of another stream


@dataclass(frozen=True)
class RankTimeline:
    """When everything of a program happened, in seconds from the start of the timeline. Parallel to the program."""

    rank: int  # global; the program may be that of a rank that does the same work
    program: StepProgram
    lanes: tuple[Lane, ...]
    lane: np.ndarray  # int32: index into `lanes`
    issued: np.ndarray  # float64: when the host issued it
    start: np.ndarray  # float64: on its lane; nan for elements that take no time there
    end: np.ndarray
    ready: (
        np.ndarray
    )  # float64: when this rank was ready for a collective, which starts when all are; else = start
    stalls: Stalls
    step_ends: np.ndarray  # float64, one for each step
