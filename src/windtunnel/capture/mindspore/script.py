"""Run the user's MindSpore script in its own process, count its steps, and report how it ended.

    RankTask ──> run_script ──> outcome: ok, failed or interrupted, and where

Both routes use it: MindSpore on loader stubs (child.py) and its meta device (meta/child.py).
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from windtunnel.capture.child_workers import ChildWorkers
from windtunnel.capture.enough_steps import EnoughSteps
from windtunnel.capture.failure_hints import explain
from windtunnel.capture.mindspore.instruments import Instruments
from windtunnel.capture.mindspore.values import UnknownReads
from windtunnel.capture.task import RankTask
from windtunnel.errors import WindtunnelError
from windtunnel.msprobe_imports import answer_msprobe

__all__ = ["CalledOsExit", "exit_outcome", "observations", "run_script", "step_report"]

_NO_TESTS = 5  # pytest's exit code
_OURS = ("/windtunnel/capture/", "<frozen runpy>", "/runpy.py")


class CalledOsExit(BaseException):
    """The script called os._exit; as an exception it still lets MindSpore write its files."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def run_script(task: RankTask) -> dict[str, Any]:
    """Run the script until it ends, and wait for the threads it left running."""
    answer_msprobe()
    workers = ChildWorkers()
    workers.install()
    outcome = _run(_script_of(task), task.world_size)
    if task.is_module and task.script == "pytest" and outcome.get("code") == _NO_TESTS:
        outcome = _without_tests(task)
    outcome["workers"] = workers.sentence()
    _wait_for_threads()
    return outcome


def _without_tests(task: RankTask) -> dict[str, Any]:
    """`pytest -s train.py` of a file that trains when it is imported: it has done its work, and pytest has none."""
    files = " ".join(word for word in task.arguments if not word.startswith("-"))
    found = (
        f"pytest found no tests in {files} and exits with code {_NO_TESTS}: what importing it ran is reported"
    )
    return exit_outcome(0) | {"of_pytest": [found]}


def exit_outcome(code: int, words: str = "") -> dict[str, Any]:
    """The outcome of a script that chose its exit code."""
    if code == 0:
        return {"status": "ok", "error": None, "is_stopped": False}
    text = f"the script exited with code {code}"
    return {"status": "failed", "error": f"{text}: {words}" if words else text, "code": code}


def step_report(steps: Any) -> Callable[[int], None]:
    """Reports the number of steps to the parent process."""

    def report(n_steps: int) -> None:
        with suppress(OSError, ValueError):
            steps.write(f"{n_steps}\n")
            steps.flush()

    return report


def observations(instruments: Instruments, reads: UnknownReads) -> dict[str, Any]:
    """What the recording needs besides rows: names of tensors, unknown values that were read."""
    instruments.name_tensors()
    return {
        "unknown_values": reads.found(),
        "notices": list(reads.notices),
        **instruments.names(),
    }


def _script_of(task: RankTask) -> Callable[[], Any]:
    sys.argv[:] = [task.script, *task.arguments]
    if task.is_module:
        sys.path.insert(0, os.getcwd())
        return lambda: runpy.run_module(task.script, run_name="__main__", alter_sys=True)
    sys.path.insert(0, str(Path(task.script).resolve().parent))
    return lambda: runpy.run_path(task.script, run_name="__main__")


def _run(program: Callable[[], Any], n_ranks: int) -> dict[str, Any]:
    """Run the program; return how it ended: ok, failed or interrupted."""
    try:
        program()
    except EnoughSteps:
        return {"status": "ok", "error": None, "is_stopped": True}
    except CalledOsExit as exit:
        return exit_outcome(exit.code)
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
        return exit_outcome(code, exit.code if isinstance(exit.code, str) else "")
    except WindtunnelError as error:  # our own error, already one sentence
        return {"status": "failed", "error": str(error)}
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
    """Wait for threads that the script left running, as Python does at exit."""
    for thread in threading.enumerate():
        if (
            thread is not threading.current_thread()
            and not thread.daemon
            and not isinstance(thread, threading._DummyThread)
        ):
            thread.join()
