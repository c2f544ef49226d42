"""Run a MindSpore script as one rank of a simulated cluster: start it, wait for it, record what its tracker saw.

    RankTask ──> loader stubs ──> the script in an interpreter of its own ──> tracker's files, marks ──> recording.arrows

MindSpore reads its environment and loads its libraries once, so a script needs a fresh process with the stubs in place.
Nothing of MindSpore is imported here.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.capture.cann_stubs import stubs_for, version_of
from windtunnel.capture.mindspore_errors import ErrorLines
from windtunnel.capture.mindspore_facts import PrintedFacts
from windtunnel.capture.model_names import ModelNames
from windtunnel.capture.task import RankTask
from windtunnel.capture.tracker_marks import Mark, read_marks
from windtunnel.capture.tracker_program import find_tracked
from windtunnel.capture.tracker_recording import write_rows
from windtunnel.errors import MissingFramework, UsageError
from windtunnel.events.file import RecordingWriter
from windtunnel.frameworks import location_of

__all__ = ["Route", "mindspore_home", "run_by", "run_rank"]

# Not `-m`: that puts the working directory before our own imports, and a json.py there would be ours.
_START = "import sys; del sys.path[0]; from windtunnel.capture.{} import start; start()"
# What MindSpore says about a machine without Ascend's toolkit, and the progress of its own files: nobody can act on it.
_NOISE = re.compile(
    r"mindspore/run_check/_check_version\.py|dlopen_macro\.h|(Tracker(Graph)?|MemBlock|Task) Dump progress"
    r"|mem_tracker\.cc|tracker_graph\.cc|ascend_memory_adapter\.cc|execute_order_tracker\.cc|pynative_utils\.cc|^\[MS_ALLOC_CONF\]"
)
_NEW_SECONDS = 3600  # a folder that old was there before the run


@dataclass(frozen=True)
class Route:
    """How a script's process is made to simulate: its program, what that is told, its variables."""

    program: str  # a file of this room
    arguments: tuple[str | Path, ...]
    variables: dict[str, str]
    notices: tuple[str, ...] = ()  # what the user must know about it


def run_rank(
    task: RankTask, on_step: Callable[[int], None] | None = None
) -> tuple[dict[str, Any], str | None]:
    """Run the task to its end, whatever that is. Returns how it ended, and why it could not be recorded if so."""
    stubs = stubs_for(mindspore_home(), tell=_say)
    return run_by(Route("mindspore_child", (stubs.marks,), stubs.environment()), task, on_step)


def run_by(
    route: Route, task: RankTask, on_step: Callable[[int], None] | None = None
) -> tuple[dict[str, Any], str | None]:
    """The same by any route whose process writes what MindSpore's tracker writes."""
    folder = Path(task.folder) / "mindspore"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    facts, errors = PrintedFacts(), ErrorLines()
    with _without_litter():
        code = _run_script(task, route, folder, facts, errors, on_step)
    marks = list(read_marks(folder / "marks.jsonl"))
    printed = {"mindspore_facts": facts.as_document(), "max_device_bytes": facts.limit_bytes()}
    outcome = printed | _outcome(marks, code)
    outcome["notices"] = [*route.notices, *outcome.get("notices", ())]
    if outcome.get("error"):
        outcome["error"] = errors.explain(str(outcome["error"]))
    failure = _record(task, folder, marks, outcome)
    if not task.is_tracking_stacks and failure is None:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome, failure


def mindspore_home() -> Path:
    """Where MindSpore is installed."""
    home = location_of("mindspore")
    if home is None:
        raise MissingFramework(
            "mindspore is not installed in this Python", hint='pip install "windtunnel[mindspore]"'
        )
    return home


# -- the script's process ----------------------------------------------------------------------------------


def _run_script(
    task: RankTask,
    route: Route,
    folder: Path,
    facts: PrintedFacts,
    errors: ErrorLines,
    on_step: Callable[[int], None] | None,
) -> int:
    """Its exit code. What it prints goes on to our own output."""
    task_file = folder / "task.json"
    task_file.write_text(task.to_json(), encoding="utf-8")
    steps, their_steps = os.pipe()
    with _ignoring_interrupts():
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", _START.format(route.program), task_file, folder / "marks.jsonl",
             str(their_steps), *route.arguments],
            stdin=subprocess.DEVNULL,  # nobody is there to answer: a script that asks must not wait
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(their_steps,),
            env=os.environ | _variables(task, folder) | route.variables,
        )  # fmt: skip
        os.close(their_steps)
        following = threading.Thread(target=_follow_steps, args=(steps, on_step), daemon=True)
        following.start()
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                _pass_on(line.decode("utf-8", errors="replace").rstrip("\r\n"), facts, errors)
        code = process.wait()
    following.join(timeout=1.0)
    return code


def _variables(task: RankTask, folder: Path) -> dict[str, str]:
    """What tells MindSpore to simulate this rank, and where to write about it."""
    settings = os.environ.get("MS_ALLOC_CONF", "")
    kept = [word for word in settings.split(",") if word.strip() and "tracker" not in word.partition(":")[0]]
    found = {
        "WINDTUNNEL_DRY_RUN": "1",
        "MS_SIMULATION_LEVEL": "1",  # its level 0 stops before a script has results, 2 and 3 need a card: those are ours
        "MS_ALLOC_CONF": ",".join([*kept, "memory_tracker:True", f"memory_tracker_path:{folder}"]),
    }
    if "MS_DEV_SAVE_GRAPHS_PATH" not in os.environ:
        found["MS_DEV_SAVE_GRAPHS_PATH"] = str(folder)  # where it lists communication
    if task.is_launched:
        found |= {
            "RANK_ID": str(task.rank),
            "RANK_SIZE": str(task.world_size),
            "DEVICE_ID": str(task.local_rank),
            "LOCAL_RANK": str(task.local_rank),
            "MS_WORKER_NUM": str(task.world_size),
            "MS_NODE_ID": str(task.rank),
        }
    return found


def _follow_steps(steps: int, on_step: Callable[[int], None] | None) -> None:
    with os.fdopen(steps) as lines:
        for line in lines:
            if on_step is not None and line.strip().isdecimal():
                on_step(int(line))


def _pass_on(line: str, facts: PrintedFacts, errors: ErrorLines) -> None:
    errors.listen(line)
    if not facts.listen(line) and not _NOISE.search(line):
        _say(line)


def _say(line: str) -> None:
    with suppress(OSError, ValueError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """An interrupt reaches the script too, which ends and writes its files: that is what we wait for."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _without_litter() -> Iterator[None]:
    """MindSpore makes an empty folder `offload` where it runs: it goes again if it was not there before.

    One that is new and empty is another rank's, which runs beside this one.
    """
    litter = Path("offload")
    try:
        was_there = time.time() - litter.stat().st_mtime > _NEW_SECONDS
    except OSError:
        was_there = False
    yield
    if not was_there:
        with suppress(OSError):
            litter.rmdir()


# -- what came of it ---------------------------------------------------------------------------------------


def _outcome(marks: list[Mark], code: int) -> dict[str, Any]:
    """How the script ended: in its own words, or by its exit code if it left none."""
    last = marks[-1] if marks else None
    if last is not None and last.kind == "end" and last.values and isinstance(last.values[0], dict):
        return dict(last.values[0])
    reason = (
        f"was killed ({signal.Signals(-code).name})"
        if code < 0
        else f"left Python at once with exit code {code}"
    )
    return {
        "status": "failed",
        "error": f"the script {reason}; MindSpore writes what it allocated only when it ends by itself",
    }


def _record(task: RankTask, folder: Path, marks: list[Mark], outcome: dict[str, Any]) -> str | None:
    """Write the recording; returns why it could not be."""
    header = {"framework": "mindspore", "mindspore": version_of(mindspore_home()), "script": task.script, "rank": task.rank,
              "world_size": task.world_size, "device": task.device.id, "level": task.level, "allocator": task.allocator,
              "allocator_conf": task.allocator_conf}  # fmt: skip
    writer = RecordingWriter(task.recording_path, header)
    try:
        program = find_tracked(folder)
        if program is not None:
            names = ModelNames(
                outcome.pop("parameter_names", {}),
                outcome.pop("optimizer_states", {}),
                tuple(outcome.pop("prefixes", ())),
            )
            write_rows(program, marks, writer, task.local_rank, task.is_tracking_stacks, names)
    except UsageError as error:
        outcome |= {"status": "failed", "error": str(error)}
    writer.close(outcome)
    return writer.failure
