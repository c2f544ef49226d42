"""Run a MindSpore script as one rank of a simulated cluster: start it, wait for it, record what its tracker wrote.

    RankTask ──> loader stubs ──> the script in a separate interpreter ──> tracker's files, marks ──> recording.arrows

MindSpore reads its environment and loads its libraries once, so a script needs a new process with the stubs in place.
MindSpore is not imported here.
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

from windtunnel.capture.mindspore.cann.stub_cache import stubs_for, version_of
from windtunnel.capture.mindspore.compile_phases import CompilePhases, compile_profile
from windtunnel.capture.mindspore.rank_log import ErrorLines, PrintedFacts
from windtunnel.capture.mindspore.tracker.marks import Mark, read_marks
from windtunnel.capture.mindspore.tracker.model_names import ModelNames
from windtunnel.capture.mindspore.tracker.program import SNAPSHOT, find_tracked
from windtunnel.capture.mindspore.tracker.recording import write_rows
from windtunnel.capture.task import RankTask
from windtunnel.errors import MissingFramework, UsageError
from windtunnel.events.file import RecordingWriter
from windtunnel.frameworks import location_of

__all__ = ["Route", "mindspore_home", "run_by", "run_rank"]

# Not `-m`: that searches the working directory first, and a json.py there would replace the standard one.
_START = "import sys; del sys.path[0]; from {} import start; start()"
# MindSpore's messages about a missing Ascend toolkit, and the progress of its own files: users cannot act on them.
_NOISE = re.compile(
    r"mindspore/run_check/_check_version\.py|dlopen_macro\.h|(Tracker(Graph)?|MemBlock|Task) Dump progress"
    r"|mem_tracker\.cc|tracker_graph\.cc|ascend_memory_adapter\.cc|execute_order_tracker\.cc|pynative_utils\.cc|^\[MS_ALLOC_CONF\]"
)
_NEW_SECONDS = 3600  # an older folder existed before the run


@dataclass(frozen=True)
class Route:
    """How a script's process simulates: its program, the program's arguments, its environment variables."""

    program: str  # a module of this package, with a function start()
    arguments: tuple[str | Path, ...]
    variables: dict[str, str]
    notices: tuple[str, ...] = ()  # what the user must know about this route


def run_rank(
    task: RankTask, on_step: Callable[[int], None] | None = None
) -> tuple[dict[str, Any], str | None]:
    """Run the task until it ends. Returns how it ended, and why it could not be recorded, if so."""
    stubs = stubs_for(mindspore_home(), tell=_print_line)
    return run_by(
        Route("windtunnel.capture.mindspore.child", (stubs.marks,), stubs.environment()), task, on_step
    )


def run_by(
    route: Route, task: RankTask, on_step: Callable[[int], None] | None = None
) -> tuple[dict[str, Any], str | None]:
    """The same by any route whose process writes what MindSpore's tracker writes."""
    folder = Path(task.folder) / "mindspore"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    facts, errors, phases = PrintedFacts(), ErrorLines(), CompilePhases()
    with _removing_offload_folder():
        code = _run_script(task, route, folder, (phases, facts, errors), on_step)
    marks = list(read_marks(folder / "marks.jsonl"))
    built = [Mark(0, "build", (f"{name}: {phase}", time_us)) for name, phase, time_us in phases.found]
    marks = [*built, *marks]
    printed = {"mindspore_facts": facts.as_document(), "max_device_bytes": facts.limit_bytes()}
    outcome = printed | _outcome(marks, code, has_snapshot=(folder / SNAPSHOT).exists())
    outcome["notices"] = [*route.notices, *outcome.get("notices", ())]
    if outcome.get("error"):
        outcome["error"] = errors.explain(str(outcome["error"]))
    failure = _record(task, folder, marks, outcome)
    if marks and marks[-1].kind == "end":
        shutil.rmtree(folder / SNAPSHOT, ignore_errors=True)
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
    listeners: tuple[CompilePhases, PrintedFacts, ErrorLines],
    on_step: Callable[[int], None] | None,
) -> int:
    """Run the script and return its exit code. What it prints is passed on to our own output."""
    task_file = folder / "task.json"
    task_file.write_text(task.to_json(), encoding="utf-8")
    steps, their_steps = os.pipe()
    with _ignoring_interrupts():
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", _START.format(route.program), task_file, folder / "marks.jsonl",
             str(their_steps), *route.arguments],
            stdin=subprocess.DEVNULL,  # there is no input: a script that reads it must not wait
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
                _pass_on(line.decode("utf-8", errors="replace").rstrip("\r\n"), *listeners)
        code = process.wait()
    following.join(timeout=1.0)
    return code


def _variables(task: RankTask, folder: Path) -> dict[str, str]:
    """The variables that make MindSpore simulate this rank, and write its files to this folder."""
    settings = os.environ.get("MS_ALLOC_CONF", "")
    kept = [word for word in settings.split(",") if word.strip() and "tracker" not in word.partition(":")[0]]
    found = {
        "WINDTUNNEL_DRY_RUN": "1",
        "MS_SIMULATION_LEVEL": "1",  # 0 stops before a script has results; 2 and 3 need a device
        "MS_ALLOC_CONF": ",".join([*kept, "memory_tracker:True", f"memory_tracker_path:{folder}"]),
    }
    if task.level == 0:
        found |= compile_profile(os.environ.get("MS_JIT", ""))
    if "MS_DEV_SAVE_GRAPHS_PATH" not in os.environ:
        found["MS_DEV_SAVE_GRAPHS_PATH"] = str(folder)  # where it lists communication
    if task.is_launched or task.world_size > 1:
        found |= {
            "RANK_ID": str(task.rank),
            "RANK_SIZE": str(task.world_size),
            "DEVICE_ID": str(task.local_rank),
            "LOCAL_RANK": str(task.local_rank),
            "MS_WORKER_NUM": str(task.world_size),
            "MS_NODE_ID": str(task.rank),
        }
    return task.variables | found


def _follow_steps(steps: int, on_step: Callable[[int], None] | None) -> None:
    with os.fdopen(steps) as lines:
        for line in lines:
            if on_step is not None and line.strip().isdecimal():
                on_step(int(line))


def _pass_on(line: str, phases: CompilePhases, facts: PrintedFacts, errors: ErrorLines) -> None:
    if phases.listen(line):
        return
    errors.listen(line)
    if not facts.listen(line) and not _NOISE.search(line):
        _print_line(line)


def _print_line(line: str) -> None:
    with suppress(OSError, ValueError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """An interrupt also reaches the script, which then ends and writes its files: we wait for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _removing_offload_folder() -> Iterator[None]:
    """MindSpore creates an empty folder `offload` where it runs: remove it if it did not exist before.

    A folder that is new and empty was created by another rank that runs at the same time.
    """
    offload = Path("offload")
    try:
        was_there = time.time() - offload.stat().st_mtime > _NEW_SECONDS
    except OSError:
        was_there = False
    yield
    if not was_there:
        with suppress(OSError):
            offload.rmdir()


# -- the outcome -------------------------------------------------------------------------------------------


def _outcome(marks: list[Mark], code: int, *, has_snapshot: bool) -> dict[str, Any]:
    """How the script ended: the outcome it wrote, or else its exit code."""
    last = marks[-1] if marks else None
    if last is not None and last.kind == "end" and last.values and isinstance(last.values[0], dict):
        return dict(last.values[0])
    reason = (
        f"was killed ({signal.Signals(-code).name})" if code < 0 else f"exited immediately with code {code}"
    )
    names: Any = next(
        (mark.values[0] for mark in reversed(marks) if mark.kind == "names" and mark.values), {}
    )
    known = (
        "the report covers its memory until the last snapshot, without operators"
        if has_snapshot
        else "it had not run long enough for a snapshot of its memory"
    )
    outcome = {"status": "failed", "error": f"the script {reason}; {known}"}
    return outcome | (names if isinstance(names, dict) else {})


def _record(task: RankTask, folder: Path, marks: list[Mark], outcome: dict[str, Any]) -> str | None:
    """Write the recording; returns why it could not be written, if so."""
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
