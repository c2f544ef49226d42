"""Simulate a job: decide which ranks run and when, pass messages between them, learn from each that ended.

    wanted ranks ──> Executor ──> Post, Fetch ──> Mailbox ──> answers
         ^               └──────> Ended ──> Analysts ──> Analysed ──┐
         └───────────────────────────── learn <─────────────────────┘

One loop over one event queue, in one thread: nothing here needs a lock.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from queue import Empty
from typing import Any, Protocol

from windtunnel.capture.task import RankTask
from windtunnel.cluster.rank_communication import RankCommunication
from windtunnel.exit_codes import INTERRUPTED
from windtunnel.session.analysts import Analysts
from windtunnel.session.executor import (
    Analysed,
    Ended,
    Events,
    Executor,
    Fetch,
    Interrupted,
    Post,
    Remark,
    Step,
)
from windtunnel.session.mailbox import Answers, Mailbox
from windtunnel.session.rank_analysis import Finding

__all__ = ["Choice", "ChosenRanks", "Outcome", "World", "WorldProgress"]

# For a rank to close its recording after an interrupt, on a busy machine too: a rank that is killed loses rows. A second
# interrupt kills it at once, as the progress line says.
_GRACE_S = 30.0
# A signal that arrives right before a wait for the queue does not wake it up, so that every wait is short.
_LOOK_UP_S = 0.5


class Choice(Protocol):
    """Which ranks to simulate; `cluster.ranks_to_simulate.RankClasses` is one."""

    @property
    def n_overlooked(self) -> int:
        """Positions that may differ and were not examined because there are too many."""

    def wanted(self) -> tuple[int, ...]: ...

    def learn(self, communication: RankCommunication | None, rank: int) -> None: ...

    def representatives(self) -> dict[int, int]: ...


class ChosenRanks:
    """Exactly these ranks, each representing itself."""

    n_overlooked = 0

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks
        self._known: set[int] = set()

    def wanted(self) -> tuple[int, ...]:
        return tuple(rank for rank in self._ranks if rank not in self._known)

    def learn(self, communication: RankCommunication | None, rank: int) -> None:
        self._known.add(rank)

    def representatives(self) -> dict[int, int]:
        return {rank: rank for rank in self._ranks}


@dataclass
class WorldProgress:
    """Progress of a job, read by another thread, which copies what it iterates over."""

    n_slots: int
    running: dict[int, float] = field(default_factory=dict)  # rank -> when it was started
    n_done: int = 0
    n_known: int = 0  # done, running and wanted
    n_waiting: int = 0  # running ranks that wait for a message
    steps: dict[int, int] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)  # rough digests of work that differs
    seconds_of_done: float = 0.0
    is_interrupted: bool = False  # and waits for the running ranks to close their recordings

    @property
    def seconds_left(self) -> float | None:
        """Estimated from the mean time of the ranks that are done; None before the first."""
        if not self.n_done:
            return None
        mean, now = self.seconds_of_done / self.n_done, time.monotonic()
        begun = sum(max(0.0, mean - (now - start)) for start in list(self.running.values()))
        return (begun + mean * (self.n_known - self.n_done - len(self.running))) / self.n_slots


@dataclass(frozen=True)
class Outcome:
    """The result of simulating a job."""

    findings: dict[int, Finding]
    asked_by: dict[int, int]  # ranks that ran only to send a message -> the first rank that asked for it
    remarks: dict[int, tuple[str, ...]]
    is_whole: bool  # every wanted rank was simulated
    is_interrupted: bool


class World:
    """The ranks of one run, from the first to the last."""

    def __init__(
        self,
        choice: Choice,
        executor: Executor,
        analysts: Analysts,
        events: Events,
        make_task: Callable[[int], RankTask],
        n_jobs: int,
        *,
        world_size: int = 1,
        stops_with_rank_0: bool = False,
    ) -> None:
        self._choice, self._executor, self._analysts = choice, executor, analysts
        self._events, self._make_task, self._n_jobs = events, make_task, n_jobs
        self._world_size = world_size
        self._stops_with_rank_0 = stops_with_rank_0  # a parallel strategy that fails on rank 0 fails on all
        self._mailbox = Mailbox()
        self._tasks: dict[int, RankTask] = {}
        self._queue: list[int] = []
        self._analysing: set[int] = set()
        self._asked_by: dict[int, int] = {}
        self._remarks: dict[int, list[str]] = {}
        self._findings: dict[int, Finding] = {}
        self._is_stopping = self._is_interrupted = False
        self._kill_at = 0.0
        self._n_stops = 0  # interrupts, and timeouts after one
        self.progress = WorldProgress(n_jobs)

    def run(self) -> Outcome:
        """Simulate until no more ranks are wanted, or an interrupt; returns what was found until then."""
        self._ask_for_more()
        with closing(self._mailbox), _interrupts_as_events(self._events):
            while True:
                self._start_more()
                if not self.progress.running and not self._analysing:
                    break
                self._handle(self._next_event())
        remarks = {rank: tuple(texts) for rank, texts in self._remarks.items()}
        is_whole = not self._is_stopping
        return Outcome(self._findings, self._asked_by, remarks, is_whole, self._is_interrupted)

    # -- which ranks ---------------------------------------------------------------------------------------

    def _ask_for_more(self) -> None:
        self._queue = [rank for rank in self._choice.wanted() if rank not in self._tasks]
        self._count()

    def _start_more(self) -> None:
        while self._queue and not self._is_stopping and self._n_busy() < self._n_jobs:
            self._start(self._queue.pop(0))

    def _n_busy(self) -> int:
        return len(self.progress.running) - len(self._mailbox.waiting) + len(self._analysing)

    def _start(self, rank: int) -> None:
        self._tasks[rank] = self._make_task(rank)
        self.progress.running[rank] = time.monotonic()
        self._count()
        self._executor.start(self._tasks[rank])

    def _learn(self, rank: int, finding: Finding) -> None:
        self._findings[rank] = finding
        communication = finding.communication
        self.progress.classes.add(
            communication.rough_digest or communication.digest
            if communication is not None
            else f"rank {rank}"
        )
        self._choice.learn(finding.communication, rank)
        if self._stops_with_rank_0 and rank == 0 and finding.result.status == "failed":
            self._is_stopping = True
            self._executor.stop(signal.SIGKILL)
        if not self._is_stopping:
            self._ask_for_more()
        self._count()

    def _count(self) -> None:
        progress = self.progress
        progress.n_waiting = len(self._mailbox.waiting)
        progress.n_known = len(self._tasks) + len(self._queue)

    # -- what happens --------------------------------------------------------------------------------------

    def _next_event(self) -> Any:
        """Return the next event; None if ranks did not end in time after an interrupt."""
        while True:
            is_waiting_for_end = self._is_interrupted and self.progress.running
            left = max(0.0, self._kill_at - time.monotonic()) if is_waiting_for_end else _LOOK_UP_S
            try:
                return self._events.get(timeout=min(left, _LOOK_UP_S))
            except Empty:
                if is_waiting_for_end and time.monotonic() >= self._kill_at:
                    return None

    def _handle(self, event: Any) -> None:
        if isinstance(event, Step):
            self.progress.steps[event.rank] = event.n_steps
        elif isinstance(event, Post):
            self._answer(self._mailbox.post(event))
        elif isinstance(event, Fetch):
            self._fetch(event)
        elif isinstance(event, Remark):
            self._remarks.setdefault(event.rank, []).append(event.text)
            if event.is_retry:
                self._mailbox.restart(event.rank)
        elif isinstance(event, Ended):
            self._end(event.rank, event.code)
        elif isinstance(event, Analysed):
            self._analysing.discard(event.rank)
            self._learn(event.rank, event.finding)
        else:
            self._stop()  # an interrupt, or ranks that did not end in time after one

    def _fetch(self, fetch: Fetch) -> None:
        if not 0 <= fetch.sender < self._world_size:
            self._executor.answer(fetch.rank, None)
            return
        self._answer(self._mailbox.fetch(fetch))
        if fetch.rank in self._mailbox.waiting and fetch.sender not in self._tasks and not self._is_stopping:
            # At once, regardless of --jobs: the rank that asked is idle until this one has sent its value.
            if fetch.sender in self._queue:
                self._queue.remove(fetch.sender)
            else:
                self._asked_by[fetch.sender] = fetch.rank
            self._start(fetch.sender)

    def _answer(self, answers: Answers) -> None:
        for rank, payload in answers:
            self._executor.answer(rank, payload)
        self._count()

    def _end(self, rank: int, code: int) -> None:
        started = self.progress.running.pop(rank, None)
        if started is None:
            return  # it was abandoned after an interrupt
        self.progress.n_done += 1
        self.progress.seconds_of_done += time.monotonic() - started
        self._answer(self._mailbox.end(rank))
        if self._is_interrupted or not self._is_stopping:
            self._analysing.add(rank)
            self._analysts.analyse(self._tasks[rank], code)

    def _stop(self) -> None:
        """Interrupt the ranks, so that they close their recordings; next time kill them; then abandon them."""
        if self._is_interrupted and not self.progress.running:
            raise KeyboardInterrupt  # do not even wait for the analysis
        self._is_stopping = self._is_interrupted = self.progress.is_interrupted = True
        self._kill_at = time.monotonic() + _GRACE_S
        self._n_stops += 1
        if self._n_stops <= 2:
            self._executor.stop(signal.SIGINT if self._n_stops == 1 else signal.SIGKILL)
            return
        for rank in list(self.progress.running):
            self._end(rank, INTERRUPTED)


@contextmanager
def _interrupts_as_events(events: Events) -> Iterator[None]:
    """Turn signals into events: an exception could interrupt a change of state halfway.

    SIGTERM and SIGHUP count as interrupts too: the ranks do not receive them themselves.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def tell(number: int, frame: Any) -> None:
        events.put(Interrupted())

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, tell) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
