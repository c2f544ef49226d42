"""Analyse ended ranks and draw their pictures in processes beside the ranks that still run.

    RankTask, exit code ──> a fork of the nursery ──> Analysed, in the queue of events

A rank that runs alone is analysed here, in a thread: there is nothing to do beside it. So is any if the nursery died.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from windtunnel.capture.task import RankTask
from windtunnel.commands.executor import Analysed, Events
from windtunnel.commands.nursery import Nursery, NurseryClosed
from windtunnel.commands.page_stage import allocations_told, detail_rank
from windtunnel.commands.rank import OUR_BUG
from windtunnel.commands.rank_analysis import Finding, analyse_rank, draw_pictures
from windtunnel.commands.request import RunRequest, task_of
from windtunnel.report.result import DeviceResult, RankResult, failed_rank

__all__ = ["Analysts"]


class Analysts:
    """Everything that is computed from recordings, several at a time."""

    def __init__(self, request: RunRequest, events: Events, nursery: Nursery) -> None:
        self._request = request
        self._events = events
        self._nursery = nursery
        self._is_alone = request.ranks is not None and len(request.ranks) == 1

    def analyse(self, task: RankTask, code: int) -> None:
        """Answered by an `Analysed` event."""
        threading.Thread(target=self._analyse, args=(task, code), daemon=True).start()

    def draw(self, ranks: Mapping[int, RankResult], n_jobs: int) -> dict[int, tuple[str, ...]]:
        """Draw these ranks; returns what to note about each."""
        device = DeviceResult(self._request.device.id, self._request.device.memory_bytes)

        def draw_one(result: RankResult) -> tuple[str, ...]:
            folder = self._request.folder / f"rank{result.rank}"
            notes = self._work("draw", (folder.resolve(), result, device), folder)
            return ("the picture could not be drawn: see run.log",) if notes is None else notes

        with ThreadPoolExecutor(max_workers=n_jobs) as pool:
            return dict(zip(ranks, pool.map(draw_one, ranks.values()), strict=True))

    def details(self, cards: Mapping[int, int], n_jobs: int) -> dict[int, dict[str, Any]]:
        """Every allocation of these ranks, the tightest first, each on the card of its report; without those that failed."""

        def detail_one(rank: int, most: int) -> Any:
            folder = self._request.folder / f"rank{rank}"
            path = task_of(self._request, rank).recording_path
            return self._work("detail", (self._request, path, cards[rank], most), folder)

        with ThreadPoolExecutor(max_workers=n_jobs) as pool:
            found = dict(zip(cards, pool.map(detail_one, cards, allocations_told(len(cards))), strict=True))
        return {rank: detail for rank, detail in found.items() if detail is not None}

    def _analyse(self, task: RankTask, code: int) -> None:
        finding = self._work("analyse", (self._request, task, code), Path(task.folder))
        if finding is None:
            sentence = f"windtunnel could not analyse the recording: please report {task.folder}/run.log"
            finding = Finding(failed_rank(task.rank, sentence), None, code or OUR_BUG)
        self._events.put(Analysed(task.rank, finding))

    def _work(self, kind: str, what: tuple[Any, ...], folder: Path) -> Any:
        """The answer; None if the process that worked on it died, its traceback in the rank's log."""
        if self._is_alone:
            return _work_here(kind, what, folder)
        ours, theirs = socket.socketpair()
        with Connection(ours.detach()) as line, theirs, _log(folder) as log:
            try:
                self._nursery.fork(kind, what, theirs.fileno(), log.fileno())
            except NurseryClosed:
                return _work_here(kind, what, folder)
            theirs.close()  # or the end of the child would not be the end of the line
            with suppress(EOFError, OSError):
                return pickle.loads(line.recv_bytes())
        return None


def _work_here(kind: str, what: tuple[Any, ...], folder: Path) -> Any:
    try:
        return {"analyse": analyse_rank, "draw": draw_pictures, "detail": detail_rank}[kind](*what)
    except Exception:
        with _log(folder) as log:
            log.write(traceback.format_exc().encode())
        return None


def _log(folder: Path) -> Any:
    try:
        return (folder / "run.log").open("ab", buffering=0)
    except OSError:
        return open(os.devnull, "wb", buffering=0)
