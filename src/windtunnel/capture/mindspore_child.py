"""The process of a MindSpore script in a dry run: MindSpore on simulated cards, with marks beside its tracker.

    RankTask ──> instruments in place ──> the user's script ──> marks.jsonl; at exit MindSpore writes its tracker's files

MindSpore itself simulates the device (MS_SIMULATION_LEVEL); what is added here only watches.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import mindspore

from windtunnel.capture.explain import explain
from windtunnel.capture.mindspore_clock import tracker_clock
from windtunnel.capture.mindspore_instruments import EnoughSteps, Instruments
from windtunnel.capture.mindspore_values import UnknownReads
from windtunnel.capture.task import RankTask
from windtunnel.capture.tracker_marks import MarkWriter

__all__ = ["start"]

_OURS = ("/windtunnel/capture/", "<frozen runpy>", "/runpy.py")


def start() -> None:
    """The program: TASK.json MARKS.jsonl STEPS_FD LIBRARY_OF_MARKS."""
    task = RankTask.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever waits for us ignores it
    steps = os.fdopen(int(sys.argv[3]), "w")
    clock, why_not = tracker_clock(Path(sys.argv[4]))
    # One operator after the other: then the tracker's clock and Python agree, and stacks are true.
    mindspore.runtime.launch_blocking()
    marks = MarkWriter(Path(sys.argv[2]), clock)
    reads = UnknownReads(marks)
    instruments = Instruments(marks, _step_counter(task.max_steps, steps))
    instruments.install()
    reads.install()
    outcome = _run(_script_of(task), task.world_size)
    _wait_for_threads()
    instruments.name_tensors()
    outcome |= {
        "unknown_values": reads.found(),
        "notices": [*reads.notices, *([why_not] if why_not else [])],
        "optimizer_states": instruments.optimizer_states(),
        "parameter_names": instruments.paths.parameter_names(),
        "prefixes": sorted(instruments.paths.prefixes, key=len, reverse=True),
        "device_target": str(mindspore.get_context("device_target")),
        "max_device_memory": str(mindspore.get_context("max_device_memory")),
        "order_folder": str(mindspore.get_context("save_graphs_path")),
        "is_graph": mindspore.get_context("mode") == mindspore.GRAPH_MODE,
    }
    marks.add("end", outcome)
    marks.close()
    sys.exit(0 if outcome["status"] == "ok" else 3)


def _step_counter(max_steps: int | None, steps: Any) -> Callable[[int], None]:
    def count(n_steps: int) -> None:
        with suppress(OSError, ValueError):
            steps.write(f"{n_steps}\n")
            steps.flush()
        if max_steps is not None and n_steps >= max_steps:
            raise EnoughSteps

    return count


def _script_of(task: RankTask) -> Callable[[], Any]:
    sys.argv[:] = [task.script, *task.arguments]
    if task.is_module:
        sys.path.insert(0, os.getcwd())
        return lambda: runpy.run_module(task.script, run_name="__main__", alter_sys=True)
    sys.path.insert(0, str(Path(task.script).resolve().parent))
    return lambda: runpy.run_path(task.script, run_name="__main__")


def _run(program: Callable[[], Any], n_ranks: int) -> dict[str, Any]:
    """Run the program; say how it ended: ok, failed or interrupted."""
    try:
        program()
    except EnoughSteps:
        return {"status": "ok", "error": None, "is_stopped": True}
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
        if code == 0:
            return {"status": "ok", "error": None, "is_stopped": False}
        text = f"the script ended itself with exit code {code}"
        return {"status": "failed", "error": f"{text}: {exit.code}" if isinstance(exit.code, str) else text}
    except KeyboardInterrupt:
        return {"status": "interrupted", "error": "interrupted: what ran before is reported"}
    except BaseException as error:
        frames = traceback.TracebackException.from_exception(error)
        kept = [f for f in frames.stack if not any(part in f.filename for part in _OURS)]
        frames.stack = traceback.StackSummary.from_list(kept or list(frames.stack))
        sys.stderr.write("".join(frames.format()))
        sys.stderr.flush()
        return {"status": "failed", "error": explain(error, n_ranks), "where": _last_user_line(error)}
    return {"status": "ok", "error": None, "is_stopped": False}


def _last_user_line(error: BaseException) -> str:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "/site-packages/mindspore/" not in frame.filename and not any(p in frame.filename for p in _OURS):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def _wait_for_threads() -> None:
    """Python itself waits at its exit for threads a script left running."""
    for thread in threading.enumerate():
        if (
            thread is not threading.current_thread()
            and not thread.daemon
            and not isinstance(thread, threading._DummyThread)
        ):
            thread.join()
