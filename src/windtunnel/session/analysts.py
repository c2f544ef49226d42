"""Analyse finished ranks and draw their pictures, in processes that run in parallel with the remaining ranks.

    RankTask, exit code ──> a fork of the fork server ──> Analysed, in the event queue
                              └── waits, if its rank is among the tightest so far ──> its detail for the page

A single rank is analysed in a thread of this process: nothing else is running. So is every rank if the fork server died.
What a process has read and played for an analysis is used again for the page. Only the tightest ranks get there, and which
these are is known at the end: so the processes of the tightest ranks so far stay, up to a limit of memory. A rank whose
process did not stay is read again.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from windtunnel.capture.task import RankTask
from windtunnel.memory.recorded_memory import RecordedMemory
from windtunnel.report.results.run import DeviceResult, RankResult, failed_rank
from windtunnel.session.executor import Analysed, Events
from windtunnel.session.fork_server import ForkServer, ForkServerClosed
from windtunnel.session.page_stage import allocation_limits, ranks_in_detail
from windtunnel.session.rank_analysis import Finding, RankAnalysis, analyse_rank, detail_rank, draw_pictures
from windtunnel.session.rank_process import OUR_BUG
from windtunnel.session.request import RunRequest, task_of

__all__ = ["Analysts"]

_MOST_KEPT_BYTES = 1 << 29  # of arrays, in all waiting processes together: about four million rows


@dataclass(frozen=True)
class _Waiting:
    """A process that has analysed a rank, and waits to be asked for its detail."""

    line: Connection
    result: RankResult
    n_bytes: int


class Analysts:
    """Computes results from recordings, several at a time."""

    def __init__(self, request: RunRequest, events: Events, fork_server: ForkServer) -> None:
        self._request = request
        self._events = events
        self._fork_server = fork_server
        self._is_alone = request.ranks is not None and len(request.ranks) == 1
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}  # rank -> its process
        self._here: dict[int, RankAnalysis] = {}  # of a single rank: in this process

    def analyse(self, task: RankTask, code: int) -> None:
        """Start the analysis; its result arrives as an `Analysed` event."""
        threading.Thread(target=self._analyse, args=(task, code), daemon=True).start()

    def draw(self, ranks: Mapping[int, RankResult], n_jobs: int) -> dict[int, tuple[str, ...]]:
        """Draw these ranks; returns notes for each."""
        device = DeviceResult(self._request.device.id, self._request.device.memory_bytes)

        def draw_one(result: RankResult) -> tuple[str, ...]:
            folder = self._request.folder / f"rank{result.rank}"
            notes = self._work("draw", (folder.resolve(), result, device), folder)
            return ("the picture could not be drawn: see run.log",) if notes is None else notes

        with ThreadPoolExecutor(max_workers=n_jobs) as pool:
            return dict(zip(ranks, pool.map(draw_one, ranks.values()), strict=True))

    def details(self, devices: Mapping[int, int], n_jobs: int) -> dict[int, dict[str, Any]]:
        """Return every allocation of these ranks (rank -> device), the tightest first; failed ones are left out."""

        def detail_one(rank: int, most: int) -> Any:
            return self._detail(rank, devices[rank], most)

        try:
            with ThreadPoolExecutor(max_workers=n_jobs) as pool:
                found = dict(
                    zip(devices, pool.map(detail_one, devices, allocation_limits(len(devices))), strict=True)
                )
        finally:
            with self._lock:
                self._keep({})
        return {rank: detail for rank, detail in found.items() if detail is not None}

    def recorded(self) -> dict[int, RecordedMemory]:
        """Return the recordings that were read in this process: of a single rank, for the stages that follow."""
        return {rank: here.recorded for rank, here in self._here.items() if here.recorded is not None}

    def _detail(self, rank: int, device: int, most: int) -> Any:
        folder = self._request.folder / f"rank{rank}"
        if rank in self._here:
            return _work_here(self._here[rank].detail, (most,), folder)
        waiting = self._waiting.get(rank)
        if waiting is not None:
            with suppress(EOFError, OSError):
                waiting.line.send_bytes(pickle.dumps(most))
                return pickle.loads(waiting.line.recv_bytes())
        path = task_of(self._request, rank).recording_path
        return self._work("detail", (self._request, path, device, most), folder)

    def _analyse(self, task: RankTask, code: int) -> None:
        finding = self._find(task, code)
        if finding is None:
            sentence = (
                f"windtunnel could not analyse the recording; please report this with {task.folder}/run.log"
            )
            finding = Finding(failed_rank(task.rank, sentence), None, code or OUR_BUG)
        self._events.put(Analysed(task.rank, finding))

    def _find(self, task: RankTask, code: int) -> Finding | None:
        """Analyse a rank; None if its process died."""
        what, folder = (self._request, task, code), Path(task.folder)
        line = None if self._is_alone else self._fork("analyse", what, folder)
        if line is None:
            analysis = _work_here(analyse_rank, what, folder)
            if analysis is not None and self._is_alone:
                self._here[task.rank] = analysis
            return None if analysis is None else analysis.finding
        try:
            finding, n_bytes = pickle.loads(line.recv_bytes())
        except (EOFError, OSError):
            line.close()
            return None
        if n_bytes is None:  # it does not wait
            line.close()
        else:
            with self._lock:
                self._keep(self._waiting | {task.rank: _Waiting(line, finding.result, n_bytes)})
        return finding

    def _keep(self, waiting: Mapping[int, _Waiting]) -> None:
        """Keep the processes of the tightest ranks, as many as the limit allows; let the others end."""
        kept: dict[int, _Waiting] = {}
        n_left = _MOST_KEPT_BYTES
        for rank in ranks_in_detail({rank: each.result for rank, each in waiting.items()}):
            n_left -= waiting[rank].n_bytes
            if n_left >= 0:
                kept[rank] = waiting[rank]
        for rank, each in (self._waiting | dict(waiting)).items():
            if rank not in kept:
                each.line.close()
        self._waiting = kept

    def _work(self, kind: str, what: tuple[Any, ...], folder: Path) -> Any:
        """Return the result; None if the process died, with its traceback in the rank's log."""
        line = None if self._is_alone else self._fork(kind, what, folder)
        if line is None:
            job: Callable[..., Any] = draw_pictures if kind == "draw" else detail_rank
            return _work_here(job, what, folder)
        with line, suppress(EOFError, OSError):
            return pickle.loads(line.recv_bytes())
        return None

    def _fork(self, kind: str, what: tuple[Any, ...], folder: Path) -> Connection | None:
        """Start the work in a new process and return the connection to it; None if there is no fork server."""
        ours, theirs = socket.socketpair()
        line = Connection(ours.detach())
        with (
            theirs,
            _log(folder) as log,
        ):  # closed here, or the connection would stay open when the child exits
            try:
                self._fork_server.fork(kind, what, theirs.fileno(), log.fileno())
            except ForkServerClosed:
                line.close()
                return None
        return line


def _work_here(job: Callable[..., Any], what: tuple[Any, ...], folder: Path) -> Any:
    try:
        return job(*what)
    except Exception:
        with _log(folder) as log:
            log.write(traceback.format_exc().encode())
        return None


def _log(folder: Path) -> Any:
    try:
        return (folder / "run.log").open("ab", buffering=0)
    except OSError:
        return open(os.devnull, "wb", buffering=0)
