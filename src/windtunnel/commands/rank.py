"""Run one simulated rank in this process (internal: `windtunnel run` starts it).

RankTask, line to whoever runs it ──> the script on the simulated device ──> recording, exit code
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from windtunnel.capture.mail import Mail
from windtunnel.capture.task import RankTask
from windtunnel.commands.rank_crash import watch_for_crashes
from windtunnel.commands.rank_line import RankLine
from windtunnel.errors import MissingFramework, NoToolchain, UnsupportedFramework, WindtunnelError
from windtunnel.events.file import RecordingWriter
from windtunnel.frameworks import load
from windtunnel.memory import Allocator
from windtunnel.memory.live import LiveMemory

__all__ = ["CANNOT_RECORD", "CANNOT_START", "OUR_BUG", "be_rank", "simulate_rank", "start"]

OUR_BUG, CANNOT_RECORD, CANNOT_START = (
    70,
    74,
    78,
)  # exit codes no script is likely to choose (those of sysexits.h)


def simulate_rank(
    task: RankTask,
    program: Callable[[], Any] | None,
    on_step: Callable[[int], None] | None,
    mail: Mail | None = None,
) -> int:
    """Simulate a rank; returns 0 if the program ended well, 3 if not, or one of the codes above."""
    if task.framework == "mindspore":
        return _simulate_mindspore(task, on_step)
    writers: list[RecordingWriter] = []

    def make_counters(writer: RecordingWriter, path: Path) -> LiveMemory:
        writers.append(writer)
        _flush_on_sudden_exit(writer)
        return LiveMemory(writer, path, lambda: Allocator.from_spec(task.allocator, conf=task.allocator_conf))

    outcome = load("capture", "rank", "torch").run_rank(task, make_counters, program, on_step, mail)
    failures = [writer.failure for writer in writers if writer.failure]
    if failures:
        print(f"windtunnel: {failures[0]}", file=sys.stderr)
        return CANNOT_RECORD
    return 0 if outcome["status"] == "ok" else 3


def _simulate_mindspore(task: RankTask, on_step: Callable[[int], None] | None) -> int:
    try:
        outcome, failure = load("capture", "rank", "mindspore").run_rank(task, on_step)
    except NoToolchain as why:
        outcome, failure = load("capture", "meta", "mindspore").run_rank(task, on_step, why)
    if failure is not None:
        print(f"windtunnel: {failure}", file=sys.stderr)
        return CANNOT_RECORD
    return 0 if outcome["status"] == "ok" else 3


def _flush_on_sudden_exit(writer: RecordingWriter) -> None:
    """A script may leave by os._exit, which runs nothing more: what it did so far is written first."""
    leave, process = os._exit, os.getpid()

    def _exit(status: int) -> None:
        if os.getpid() == process:
            writer.flush()
        leave(status)

    os._exit = _exit  # type: ignore[assignment]


def be_rank(task: RankTask, line: Connection) -> NoReturn:
    """Simulate the rank, and leave this process."""
    leave = os._exit
    os.set_inheritable(line.fileno(), False)  # programs the script starts do not need it
    watch_for_crashes(task.folder)
    code = _run_task(task, RankLine(line))
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the script may have closed it
            stream.flush()
    leave(code)  # nothing of the simulated torch needs a tidy shutdown, and it can take seconds


def _run_task(task: RankTask, line: RankLine) -> int:
    try:
        return simulate_rank(task, None, line.step, line)
    except WindtunnelError as error:
        print(f"windtunnel: {error}", file=sys.stderr)
        return (
            CANNOT_START if isinstance(error, (MissingFramework, UnsupportedFramework)) else error.exit_code
        )
    except Exception:
        traceback.print_exc()
        return OUR_BUG


def start() -> None:
    """The program of a rank in an interpreter of its own: TASK.json LINE_FD."""
    task = RankTask.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    be_rank(task, Connection(int(sys.argv[2])))
