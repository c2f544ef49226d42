"""The process of a MindSpore script in a dry run: MindSpore on simulated devices, with marks beside its tracker.

    RankTask ──> instruments in place ──> the user's script ──> marks.jsonl; at exit MindSpore writes its tracker's files

MindSpore itself simulates the device (MS_SIMULATION_LEVEL); the code here only observes, and gives a size to operators
whose size MindSpore's dry run cannot know.
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
from mindspore.profiler.common.profiler_context import ProfilerContext
from mindspore.profiler.profiler_interface import ProfilerInterface

from windtunnel.capture.enough_steps import step_counter
from windtunnel.capture.mindspore.clock import Snapshots, dump_tracker, tracker_clock
from windtunnel.capture.mindspore.instruments import Instruments
from windtunnel.capture.mindspore.largest_shapes import install_largest_shapes
from windtunnel.capture.mindspore.objects import install_objects
from windtunnel.capture.mindspore.script import (
    CalledOsExit,
    exit_outcome,
    observations,
    run_script,
    step_report,
)
from windtunnel.capture.mindspore.summaries import install_summaries
from windtunnel.capture.mindspore.tracker.marks import MarkWriter
from windtunnel.capture.mindspore.values import UnknownReads
from windtunnel.capture.task import RankTask

__all__ = ["start"]


def start() -> None:
    """The program: TASK.json MARKS.jsonl STEPS_FD LIBRARY_OF_MARKS."""
    task = RankTask.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    _listen_to_interrupts()
    _show_level(task.level)
    steps = os.fdopen(int(sys.argv[3]), "w")
    library = Path(sys.argv[4])
    clock, why_not = tracker_clock(library)
    # One operator at a time: then the tracker's clock and Python agree, and stacks are correct.
    mindspore.runtime.launch_blocking()
    marks = MarkWriter(Path(sys.argv[2]), clock)
    reads = UnknownReads(marks)
    instruments = Instruments(
        marks, step_counter(task.max_steps, step_report(steps)), shows_phases=task.level == 0
    )
    instruments.install()
    reads.install()
    install_objects(reads.notice)
    install_largest_shapes(reads.count)
    install_summaries(reads.notice)
    profiled = _profiler_folders()
    snapshots = Snapshots(library, task.rank, Path(sys.argv[2]).parent, marks.flush)

    def finish(outcome: dict[str, Any]) -> None:
        snapshots.stop()
        outcome |= observations(instruments, reads)
        outcome |= {
            "notices": [*outcome["notices"], *outcome.pop("of_pytest", ()), *([why_not] if why_not else [])],
            "device_target": str(mindspore.get_context("device_target")),
            "order_folder": str(mindspore.get_context("save_graphs_path")),
            "is_graph": mindspore.get_context("mode") == mindspore.GRAPH_MODE,
            "profiler_folders": profiled,
        }
        marks.add("end", outcome)
        marks.close()

    exits = _SuddenExits(finish, lambda: dump_tracker(library, task.rank))
    exits.install()
    if why_not is None:
        snapshots.start()
    outcome = run_script(task)
    exits.is_finished = True
    finish(outcome)
    sys.exit(0 if outcome["status"] == "ok" else 3)


def _show_level(level: int) -> None:
    """Python reads the level of this run; MindSpore's libraries, which read the process's own variable, simulate level 1."""
    data = os.environ._data  # type: ignore[attr-defined]  # assigning to os.environ would change both
    data[os.environ.encodekey("MS_SIMULATION_LEVEL")] = str(level).encode()


def _profiler_folders() -> list[str]:
    """The folders that MindSpore's Profiler chooses from here on, one for each time it is started."""
    found: list[str] = []
    begin = ProfilerInterface.init

    def begin_and_note() -> None:
        is_begun = ProfilerInterface.is_initialized
        begin()
        if not is_begun:
            found.append(str(Path(ProfilerContext().ascend_ms_dir).absolute()))

    ProfilerInterface.init = begin_and_note
    return found


def _listen_to_interrupts() -> None:
    """Our parent ignores interrupts; MindSpore turns each into a SIGTERM, which would end us silently."""
    process = os.getpid()

    def interrupt(number: int, frame: Any) -> None:
        if os.getpid() != process:  # a worker that a dataset forked: behave as without windtunnel
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


class _SuddenExits:
    """A script may call os._exit, after which nothing runs. What it did is written first."""

    def __init__(self, finish: Callable[[dict[str, Any]], None], dump: Callable[[], None]) -> None:
        self._finish, self._dump = finish, dump
        self._leave, self._process = os._exit, os.getpid()
        self.is_finished = False  # only the script's exit handlers are left to run

    def install(self) -> None:
        os._exit = self._exit  # type: ignore[assignment]

    def _exit(self, status: int) -> None:
        if os.getpid() != self._process:  # a worker that a dataset forked
            self._leave(status)
        if not self.is_finished and threading.current_thread() is threading.main_thread():
            raise CalledOsExit(status)  # the most reliable way: MindSpore shuts down properly
        os._exit = self._leave
        with suppress(Exception):  # whatever fails here, the script must exit
            if not self.is_finished:
                self._finish(exit_outcome(status))
            self._dump()
        self._leave(status)
