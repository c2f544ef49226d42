"""The process of a MindSpore script in a dry run: MindSpore on simulated cards, with marks beside its tracker.

    RankTask ──> instruments in place ──> the user's script ──> marks.jsonl; at exit MindSpore writes its tracker's files

MindSpore itself simulates the device (MS_SIMULATION_LEVEL); what is added here only watches.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import mindspore

from windtunnel.capture.mindspore_clock import dump_tracker, tracker_clock
from windtunnel.capture.mindspore_instruments import Instruments
from windtunnel.capture.mindspore_objects import install_objects
from windtunnel.capture.mindspore_script import (
    LeftAtOnce,
    ended_with,
    run_script,
    step_counter,
    what_was_seen,
)
from windtunnel.capture.mindspore_values import UnknownReads
from windtunnel.capture.task import RankTask
from windtunnel.capture.tracker_marks import MarkWriter

__all__ = ["start"]


def start() -> None:
    """The program: TASK.json MARKS.jsonl STEPS_FD LIBRARY_OF_MARKS."""
    task = RankTask.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    _listen_to_interrupts()
    steps = os.fdopen(int(sys.argv[3]), "w")
    library = Path(sys.argv[4])
    clock, why_not = tracker_clock(library)
    # One operator after the other: then the tracker's clock and Python agree, and stacks are true.
    mindspore.runtime.launch_blocking()
    marks = MarkWriter(Path(sys.argv[2]), clock)
    reads = UnknownReads(marks)
    instruments = Instruments(marks, step_counter(task.max_steps, steps))
    instruments.install()
    reads.install()
    install_objects(reads.notice)

    def finish(outcome: dict[str, Any]) -> None:
        outcome |= what_was_seen(instruments, reads)
        outcome |= {
            "notices": [*outcome["notices"], *([why_not] if why_not else [])],
            "device_target": str(mindspore.get_context("device_target")),
            "order_folder": str(mindspore.get_context("save_graphs_path")),
            "is_graph": mindspore.get_context("mode") == mindspore.GRAPH_MODE,
        }
        marks.add("end", outcome)
        marks.close()

    exits = _SuddenExits(finish, lambda: dump_tracker(library, task.rank))
    exits.install()
    outcome = run_script(task)
    exits.is_finished = True
    finish(outcome)
    sys.exit(0 if outcome["status"] == "ok" else 3)


def _listen_to_interrupts() -> None:
    """Whoever waits for us ignores them; MindSpore makes a SIGTERM of each, which would end us without a word."""
    process = os.getpid()

    def interrupt(number: int, frame: Any) -> None:
        if os.getpid() != process:  # a worker that a dataset has forked: as if we had not been here
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


class _SuddenExits:
    """A script may leave by os._exit, which runs nothing more. What it did is written first."""

    def __init__(self, finish: Callable[[dict[str, Any]], None], dump: Callable[[], None]) -> None:
        self._finish, self._dump = finish, dump
        self._leave, self._process = os._exit, os.getpid()
        self.is_finished = False  # only what the script asked for at exit is still to run

    def install(self) -> None:
        os._exit = self._exit  # type: ignore[assignment]

    def _exit(self, status: int) -> None:
        if os.getpid() != self._process:  # a worker that a dataset has forked
            self._leave(status)
        if not self.is_finished and threading.current_thread() is threading.main_thread():
            raise LeftAtOnce(status)  # the surest way: MindSpore ends in order
        os._exit = self._leave
        with suppress(Exception):  # whatever fails here, the script wants to leave
            if not self.is_finished:
                self._finish(ended_with(status))
            self._dump()
        self._leave(status)
