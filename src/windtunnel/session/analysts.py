"""Analyse finished ranks and draw their pictures, in processes that run in parallel with the remaining ranks.

    RankTask, exit code ──> a fork of the fork server ──> Analysed, in the event queue

A single rank is analysed in a thread of this process: nothing else is running. So is every rank if the fork server died.
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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from windtunnel.capture.task import RankTask
from windtunnel.report.results.run import DeviceResult, RankResult, failed_rank
from windtunnel.session.executor import Analysed, Events
from windtunnel.session.fork_server import ForkServer, ForkServerClosed
from windtunnel.session.page_stage import allocation_limits, detail_rank
from windtunnel.session.rank import OUR_BUG
from windtunnel.session.rank_analysis import Finding, analyse_rank, draw_pictures
from windtunnel.session.request import RunRequest, task_of

__all__ = ["Analysts"]


class Analysts:
    """Computes results from recordings, several at a time."""

    def __init__(self, request: RunRequest, events: Events, fork_server: ForkServer) -> None:
        self._request = request
        self._events = events
        self._fork_server = fork_server
        self._is_alone = request.ranks is not None and len(request.ranks) == 1

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
            folder = self._request.folder / f"rank{rank}"
            path = task_of(self._request, rank).recording_path
            return self._work("detail", (self._request, path, devices[rank], most), folder)

        with ThreadPoolExecutor(max_workers=n_jobs) as pool:
            found = dict(
                zip(devices, pool.map(detail_one, devices, allocation_limits(len(devices))), strict=True)
            )
        return {rank: detail for rank, detail in found.items() if detail is not None}

    def _analyse(self, task: RankTask, code: int) -> None:
        finding = self._work("analyse", (self._request, task, code), Path(task.folder))
        if finding is None:
            sentence = (
                f"windtunnel could not analyse the recording; please report this with {task.folder}/run.log"
            )
            finding = Finding(failed_rank(task.rank, sentence), None, code or OUR_BUG)
        self._events.put(Analysed(task.rank, finding))

    def _work(self, kind: str, what: tuple[Any, ...], folder: Path) -> Any:
        """Return the result; None if the process died, with its traceback in the rank's log."""
        if self._is_alone:
            return _work_here(kind, what, folder)
        ours, theirs = socket.socketpair()
        with Connection(ours.detach()) as line, theirs, _log(folder) as log:
            try:
                self._fork_server.fork(kind, what, theirs.fileno(), log.fileno())
            except ForkServerClosed:
                return _work_here(kind, what, folder)
            theirs.close()  # otherwise the connection would stay open when the child exits
            with suppress(EOFError, OSError):
                return pickle.loads(line.recv_bytes())
        return None


def _work_here(kind: str, what: tuple[Any, ...], folder: Path) -> Any:
    jobs: dict[str, Callable[..., Any]] = {
        "analyse": analyse_rank,
        "draw": draw_pictures,
        "detail": detail_rank,
    }
    try:
        return jobs[kind](*what)
    except Exception:
        with _log(folder) as log:
            log.write(traceback.format_exc().encode())
        return None


def _log(folder: Path) -> Any:
    try:
        return (folder / "run.log").open("ab", buffering=0)
    except OSError:
        return open(os.devnull, "wb", buffering=0)
