"""A program cut into runs: stretches without any waiting, which a replay handles in one step each.

    StepProgram ──> runs of kernels on one stream, calls between them ──> ProgramRuns
    ProgramRuns, start of each run ──> times of every element

The host begins a run at `t` and its stream is free at `f`. A kernel with `busy` seconds of work up to its end, which
would end `late` seconds after `t` on an idle stream, ends at max(f + busy, t + late). So two numbers describe a run to
the rest of the replay, and the times of all kernels are computed afterwards, at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from windtunnel.cluster.lanes import lanes_of
from windtunnel.cluster.program import Lane, StepProgram, Work

__all__ = ["Call", "ProgramRuns", "Run", "runs_of"]

_PLAIN = (Work.KERNEL, Work.HOST, Work.STEP)
_COMMUNICATION = (Work.COLLECTIVE, Work.SEND, Work.RECEIVE)
_HOST_LANE = 0


class Run(NamedTuple):
    """Consecutive elements without waiting: kernels of one stream, and the host work between them."""

    number: int
    stream: int  # -1: the host alone
    host_seconds: float
    busy: float
    late: float


class Call(NamedTuple):
    """Any other element."""

    number: int
    element: int
    work: int
    stream: int
    subject: int
    seconds: float
    host_seconds: float
    is_async: bool
    group: int
    peer: int
    sequence: int
    lane: int  # of the communication


@dataclass(frozen=True)
class ProgramRuns:
    """The runs and calls of a program; shared by all ranks with the same program."""

    program: StepProgram
    items: tuple[Run | Call, ...]
    lanes: tuple[Lane, ...]
    stream_lanes: dict[int, int]
    lane: np.ndarray  # int32 [element]
    n_runs: int
    calls: np.ndarray  # int64: the elements that are calls
    _run: np.ndarray  # int64 [element]; for a call, the run before it
    _asked: np.ndarray  # float64 [element]: seconds after the start of its run
    _kernels: np.ndarray  # int64: elements
    _is_first: np.ndarray  # bool [kernel]: of its run
    _busy: np.ndarray  # float64 [kernel]
    _late: np.ndarray  # float64 [kernel]

    def issued(self, began: np.ndarray) -> np.ndarray:
        """When the host issued each element, given the start of each run; calls are not filled in."""
        return began[self._run] + self._asked if len(began) else np.zeros(len(self.program))

    def kernels(self, began: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Kernel elements with their starts and ends, given when the stream was free for each run."""
        kernels, runs = self._kernels, self._run[self._kernels]
        end = np.maximum(free[runs] + self._busy, began[runs] + self._late)
        # The end of one kernel is bit for bit the start of the next, if nothing lies between.
        before = np.where(self._is_first, free[runs], np.roll(end, 1))
        there = began[runs] + self._asked[kernels] + self.program.host_seconds[kernels]
        return kernels, np.maximum(before, there), end


def runs_of(program: StepProgram) -> ProgramRuns:
    work, host = program.work, program.host_seconds
    is_kernel, is_plain = work == Work.KERNEL, np.isin(work, _PLAIN)
    begins = _begins(program, is_kernel, is_plain)
    starts = np.flatnonzero(begins)
    item = np.cumsum(begins) - 1  # of each element
    is_run = is_plain[starts]
    run = np.maximum(np.cumsum(is_run) - 1, 0)[item] if len(item) else item

    on_host = host + program.seconds * is_kernel if program.is_synchronous else host
    asked = _since(starts, item, np.cumsum(on_host) - on_host)
    kernels = np.flatnonzero(is_kernel)
    is_first = np.diff(item[kernels], prepend=-1) != 0
    busy, late = _work_and_delay(program, asked, kernels, is_first)

    lanes, stream_lanes, lane = lanes_of(program)
    last = np.flatnonzero(np.append(is_first[1:], True)) if len(kernels) else kernels  # kernel of its run
    ends = {int(item[kernels[k]]): k for k in last.tolist()}
    spans = np.add.reduceat(on_host, starts) if len(starts) else on_host
    items = _items(program, starts, is_run, spans, ends, kernels, busy, late, lane)
    return ProgramRuns(
        program, items, lanes, stream_lanes, lane, int(is_run.sum()), starts[~is_run], run, asked, kernels, is_first,
        busy, late,
    )  # fmt: skip


def _begins(program: StepProgram, is_kernel: np.ndarray, is_plain: np.ndarray) -> np.ndarray:
    """Where an item begins: at and after every call, and where the stream of the kernels changes."""
    begins = ~is_plain
    begins[1:] |= ~is_plain[:-1]
    begins[:1] = True
    if not program.is_synchronous:
        kernels = np.flatnonzero(is_kernel)
        stream = program.stream[kernels]
        begins[kernels[1:]] |= stream[1:] != stream[:-1]
    return begins


def _since(starts: np.ndarray, item: np.ndarray, total: np.ndarray) -> np.ndarray:
    """A running total, counted from the start of each item."""
    return total - total[starts][item] if len(starts) else total


def _work_and_delay(
    program: StepProgram, asked: np.ndarray, kernels: np.ndarray, is_first: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each kernel: seconds of work in its run up to its end, and its end on an idle stream."""
    seconds = program.seconds[kernels]
    there = (asked + program.host_seconds)[kernels]
    if program.is_synchronous:
        return np.zeros(len(kernels)), there + seconds
    total = np.cumsum(seconds)
    firsts = np.flatnonzero(is_first)
    before = (total - seconds)[firsts]
    busy = total - before[np.cumsum(is_first) - 1] if len(firsts) else total
    late, end = [], 0.0
    for at, takes, begins in zip(there.tolist(), seconds.tolist(), is_first.tolist(), strict=True):
        end = (at if begins or at > end else end) + takes
        late.append(end)
    return busy, np.array(late)


def _items(
    program: StepProgram, starts: np.ndarray, is_run: np.ndarray, spans: np.ndarray, ends: dict[int, int],
    kernels: np.ndarray, busy: np.ndarray, late: np.ndarray, lane: np.ndarray,
) -> tuple[Run | Call, ...]:  # fmt: skip
    columns = (
        program.work, program.stream, program.subject, program.seconds, program.host_seconds, program.is_async,
        program.group, program.peer, program.sequence, lane,
    )  # fmt: skip
    calls = zip(*(column[starts[~is_run]].tolist() for column in columns), strict=True)
    found: list[Run | Call] = []
    n_runs = 0
    for number, (element, is_plain, span) in enumerate(
        zip(starts.tolist(), is_run.tolist(), spans.tolist(), strict=True)
    ):
        if not is_plain:
            found.append(Call(number - n_runs, element, *next(calls)))
            continue
        k = ends.get(number)
        if k is None or program.is_synchronous:
            found.append(Run(n_runs, -1, span, 0.0, 0.0))
        else:
            found.append(Run(n_runs, int(program.stream[kernels[k]]), span, float(busy[k]), float(late[k])))
        n_runs += 1
    return tuple(found)
