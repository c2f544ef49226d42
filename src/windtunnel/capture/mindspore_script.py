"""The user's MindSpore script in its own process: run it, count its steps, say how it ended.

    RankTask ──> run_script ──> outcome: ok, failed or interrupted, and where

Both routes share it: MindSpore on loader stubs (mindspore_child.py) and its meta device (mindspore_meta_child.py).
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

from windtunnel.capture.explain import explain
from windtunnel.capture.mindspore_instruments import EnoughSteps, Instruments
from windtunnel.capture.mindspore_values import UnknownReads
from windtunnel.capture.task import RankTask
from windtunnel.errors import WindtunnelError

__all__ = ["LeftAtOnce", "ended_with", "run_script", "step_counter", "what_was_seen"]

_OURS = ("/windtunnel/capture/", "<frozen runpy>", "/runpy.py")


class LeftAtOnce(BaseException):
    """The script called os._exit; as an exception it still lets MindSpore write its files."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def run_script(task: RankTask) -> dict[str, Any]:
    """Run it to its end, whatever that is, and wait for the threads it left."""
    outcome = _run(_script_of(task), task.world_size)
    _wait_for_threads()
    return outcome


def ended_with(code: int, words: str = "") -> dict[str, Any]:
    """The outcome of a script that chose its exit code."""
    if code == 0:
        return {"status": "ok", "error": None, "is_stopped": False}
    text = f"the script ended itself with exit code {code}"
    return {"status": "failed", "error": f"{text}: {words}" if words else text}


def step_counter(max_steps: int | None, steps: Any) -> Callable[[int], None]:
    """Tells whoever waits how many steps there were; ends the script when they are enough."""

    def count(n_steps: int) -> None:
        with suppress(OSError, ValueError):
            steps.write(f"{n_steps}\n")
            steps.flush()
        if max_steps is not None and n_steps >= max_steps:
            raise EnoughSteps

    return count


def what_was_seen(instruments: Instruments, reads: UnknownReads) -> dict[str, Any]:
    """What the recording needs beside rows: names of tensors, values that did not exist."""
    instruments.name_tensors()
    return {
        "unknown_values": reads.found(),
        "notices": list(reads.notices),
        "optimizer_states": instruments.optimizer_states,
        "parameter_names": instruments.parameter_names,
        "prefixes": sorted(instruments.paths.prefixes, key=len, reverse=True),
    }


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
    except LeftAtOnce as exit:
        return ended_with(exit.code)
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
        return ended_with(code, exit.code if isinstance(exit.code, str) else "")
    except WindtunnelError as error:  # ours to say, in one sentence
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
    """Python itself waits at its exit for threads a script left running."""
    for thread in threading.enumerate():
        if (
            thread is not threading.current_thread()
            and not thread.daemon
            and not isinstance(thread, threading._DummyThread)
        ):
            thread.join()
