"""Run simulated ranks, each in its own process, and pass on what their scripts print.

    RankTask ──> fresh interpreter ──> lines (run.log, listener), steps (listener), exit code

A rank leads a session of its own: what its script starts ends with it, and an interrupt reaches all of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from windtunnel.capture.task import RankTask

__all__ = ["INTERRUPTED", "Listener", "run_ranks", "whole_lines"]

INTERRUPTED = 130  # exit code of a rank that was told to stop

# (rank, "line" | "step", text or number): what a caller may show while ranks run
Listener = Callable[[int, str, Any], None]

# Not `-m`: that puts the working directory before our own imports, and a json.py there would be ours.
_START = "import sys; del sys.path[0]; from windtunnel.commands.rank import start; start()"
_GRACE_S = 3.0  # for a rank to close its recording after an interrupt
_DRAIN_S = 1.0  # for what a script left behind to let go of its output
_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 20  # bytes kept waiting for their newline


def run_ranks(tasks: Sequence[RankTask], n_jobs: int, listen: Listener) -> list[int]:
    """Run every task, `n_jobs` at a time; returns their exit codes. An interrupt stops all cleanly."""
    crew = _Crew(listen)
    with ThreadPoolExecutor(max_workers=max(1, min(n_jobs, len(tasks)))) as pool:
        futures = [pool.submit(crew.run, task) for task in tasks]
        with _interrupts():
            try:
                wait(futures)
            except KeyboardInterrupt:
                crew.stop(signal.SIGINT)
                with suppress(KeyboardInterrupt):  # a second one: no more patience
                    wait(futures, timeout=_GRACE_S)
                crew.stop(signal.SIGKILL)
                wait(futures, timeout=_GRACE_S)
        return [future.result() for future in futures]


@contextmanager
def _interrupts() -> Iterator[None]:
    """A polite kill or a closed terminal is an interrupt too: ranks would not hear of it by themselves."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class _Crew:
    """The ranks that are running, so that they can be stopped together."""

    def __init__(self, listen: Listener) -> None:
        self.listen = listen
        self.lock = threading.Lock()
        self.running: set[int] = set()  # process ids, each the leader of its group
        self.is_stopping = False

    def run(self, task: RankTask) -> int:
        task_file = Path(task.folder) / "task.json"
        task_file.write_text(task.to_json(), encoding="utf-8")
        read_end, write_end = os.pipe()
        try:
            process = self._start(task_file, write_end)
        finally:
            os.close(write_end)
        steps = threading.Thread(target=self._follow_steps, args=(read_end, task.rank), daemon=True)
        steps.start()
        if process is None:
            return INTERRUPTED
        try:
            code = self._follow(process, task)
        finally:
            with self.lock:
                self.running.discard(process.pid)
            steps.join(timeout=_DRAIN_S)
            task_file.unlink(missing_ok=True)
        return INTERRUPTED if self.is_stopping else code

    def stop(self, number: signal.Signals) -> None:
        with self.lock:
            self.is_stopping = True
            for pid in self.running:
                _signal_group(pid, number)

    def _start(self, task_file: Path, write_end: int) -> subprocess.Popen[bytes] | None:
        command = [sys.executable, "-u", "-c", _START, str(task_file), str(write_end)]
        with self.lock:
            if self.is_stopping:
                return None
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,  # nobody is there to answer: a script that asks must not wait
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                start_new_session=True,
            )
            self.running.add(process.pid)
            return process

    def _follow(self, process: subprocess.Popen[bytes], task: RankTask) -> int:
        assert process.stdout is not None
        log = Path(task.folder) / "run.log"
        copying = threading.Thread(
            target=self._copy_output, args=(process.stdout, log, task.rank), daemon=True
        )
        copying.start()
        code = process.wait()
        copying.join(timeout=_DRAIN_S)
        _signal_group(process.pid, signal.SIGTERM)  # what the script started and left running
        copying.join(timeout=_DRAIN_S)
        if not copying.is_alive():
            process.stdout.close()
        return code

    def _copy_output(self, output: IO[bytes], log_path: Path, rank: int) -> None:
        with log_path.open("wb", buffering=0) as log:
            is_logging = True
            for line in whole_lines(iter(lambda: os.read(output.fileno(), _CHUNK), b"")):
                if is_logging:
                    try:
                        log.write(line + b"\n")
                    except OSError:
                        is_logging = False  # a full disk: the script goes on, and its output to the screen
                if not self.is_stopping:
                    self.listen(rank, "line", line.decode("utf-8", errors="replace"))

    def _follow_steps(self, read_end: int, rank: int) -> None:
        with os.fdopen(read_end, "rb") as lines:
            for line in lines:
                self.listen(rank, "step", int(line))


def whole_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines without their ends; of one rewritten with carriage returns (a progress bar), its last state."""
    pending = b""
    for chunk in chunks:
        *lines, pending = (pending + chunk).split(b"\n")
        yield from map(_last_state, lines)
        body = pending.rstrip(b"\r")
        pending = _last_state(body) + pending[len(body) :]  # earlier states of a bar need not be kept
        if len(pending) > _LONGEST_LINE:
            yield _last_state(pending)
            pending = b""
    if pending:
        yield _last_state(pending)


def _last_state(line: bytes) -> bytes:
    line = line.rstrip(b"\r")
    return line.rpartition(b"\r")[2]


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
