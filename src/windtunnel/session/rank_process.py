"""Run one simulated rank in this process (internal: `windtunnel run` starts it).

RankTask, connection to the executor ──> the script on the simulated device ──> recording, exit code
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

from windtunnel import interrupts
from windtunnel.capture.memory_counters_protocol import MakeCounters, MemoryCounters
from windtunnel.capture.rank_messages import RankMessages
from windtunnel.capture.task import RankTask
from windtunnel.errors import MissingFramework, NoToolchain, UnsupportedFramework, WindtunnelError
from windtunnel.events.file import RecordingWriter
from windtunnel.frameworks import load
from windtunnel.memory import Allocator
from windtunnel.memory.live_memory import LiveMemory
from windtunnel.session.rank_channel import RankChannel
from windtunnel.session.rank_crash import watch_for_crashes

__all__ = ["CANNOT_RECORD", "CANNOT_START", "OUR_BUG", "be_rank", "simulate_rank", "start"]

# Exit codes of a rank's process that no script is likely to choose (those of sysexits.h).
OUR_BUG, CANNOT_RECORD, CANNOT_START = 70, 74, 78


def simulate_rank(
    task: RankTask,
    program: Callable[[], Any] | None,
    on_step: Callable[[int], None] | None,
    messages: RankMessages | None = None,
) -> int:
    """Simulate a rank; returns 0 if the program succeeded, 3 if it failed, or one of the codes above."""
    if task.framework == "mindspore":
        outcome, failure = _run_mindspore(task, on_step)
    else:
        outcome, failure = load("windtunnel.capture.pytorch.rank", "torch").run_rank(
            task, _counters_of(task), program, on_step, messages
        )
    if failure is not None:
        sys.stderr.write(f"windtunnel: {failure}\n")
        return CANNOT_RECORD
    return 0 if outcome["status"] == "ok" else 3


def _counters_of(task: RankTask) -> MakeCounters:
    """What torch.cuda.memory_allocated() and the like answer: the allocator of the task, fed with the recording."""

    def make_counters(writer: RecordingWriter, path: Path) -> MemoryCounters:
        return LiveMemory(writer, path, lambda: Allocator.from_spec(task.allocator, conf=task.allocator_conf))

    return make_counters


def _run_mindspore(
    task: RankTask, on_step: Callable[[int], None] | None
) -> tuple[dict[str, Any], str | None]:
    try:
        return load("windtunnel.capture.mindspore.rank", "mindspore").run_rank(task, on_step)
    except NoToolchain as why:
        return load("windtunnel.capture.mindspore.meta.rank", "mindspore").run_rank(task, on_step, why)


def be_rank(task: RankTask, line: Connection) -> NoReturn:
    """Simulate the rank, then exit this process."""
    leave = os._exit
    os.set_inheritable(line.fileno(), False)  # programs started by the script must not inherit it
    watch_for_crashes(task.folder)
    interrupts.listen()
    code = _run_task(task, RankChannel(line))
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the script may have closed it
            stream.flush()
    leave(code)  # the simulated torch needs no orderly shutdown, which can take seconds


def _run_task(task: RankTask, line: RankChannel) -> int:
    try:
        return simulate_rank(task, None, line.step, line)
    except WindtunnelError as error:
        sys.stderr.write(f"windtunnel: {error}\n")
        return (
            CANNOT_START if isinstance(error, (MissingFramework, UnsupportedFramework)) else error.exit_code
        )
    except Exception:
        traceback.print_exc()
        return OUR_BUG


def start() -> None:
    """Run a rank in a fresh interpreter; arguments: TASK.json CONNECTION_FD."""
    task = RankTask.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    be_rank(task, Connection(int(sys.argv[2])))
