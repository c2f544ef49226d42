"""Run simulated ranks as processes on this machine, and pass on the output of their scripts.

    RankTask ──> a fork of the fork server, or a fresh interpreter ──> lines (run.log, on_line), Step, Post, Fetch, Ended

Each rank leads its own session, so that signals reach the script and everything it starts.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from windtunnel.capture.task import RankTask
from windtunnel.exit_codes import INTERRUPTED
from windtunnel.isolation.file_changes import Files
from windtunnel.session.executor import Ended, Events, OnLine, Remark
from windtunnel.session.fork_server import Child, ForkServer, ForkServerClosed
from windtunnel.session.rank_channel import answer, read_messages
from windtunnel.session.rank_process import OUR_BUG

__all__ = ["LocalExecutor", "n_cores", "whole_lines"]

# Not `-m`: that puts the working directory first on sys.path, and a json.py in it would shadow the standard one.
_START = (
    "import sys; del sys.path[0]; from windtunnel.isolation.entrance import enter_by_order; enter_by_order(sys.argv.pop());"
    " from windtunnel.session.rank_process import start; start()"
)
_DRAIN_S = 1.0  # for processes the script left behind to close its output
_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 20  # bytes buffered before a newline comes
_LOST = "the fork server died, often because this machine ran out of memory: this rank was run again in a fresh interpreter"

Process = Child | subprocess.Popen


def n_cores() -> int:
    """Number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalExecutor:
    """Runs ranks as processes on this machine, with one thread per rank."""

    def __init__(self, events: Events, fork_server: ForkServer, on_line: OnLine) -> None:
        self.n_slots = n_cores()
        self._events = events
        self._fork_server = fork_server
        self._on_line = on_line
        self._lock = threading.Lock()
        self._processes: dict[int, int] = {}  # rank -> process id, the leader of its group
        self._lines: dict[int, Connection] = {}
        self._stopping: signal.Signals | None = None
        self._has_started = False  # any rank

    def start(self, task: RankTask) -> None:
        threading.Thread(target=self._run, args=(task,), daemon=True).start()

    def answer(self, rank: int, payload: bytes | None) -> None:
        with suppress(KeyError, OSError):  # it was killed while it waited
            answer(self._lines[rank], payload)

    def stop(self, number: signal.Signals) -> None:
        with self._lock:
            self._stopping = number
            for pid in self._processes.values():
                _signal_group(pid, number)
            has_started = self._has_started
        if not has_started:
            self._fork_server.close()  # it is still importing torch, and no rank has to end first

    def files(self) -> Files | None:
        return None if self._fork_server.isolation is None else self._fork_server.isolation.files()

    def close(self) -> None:
        self.stop(signal.SIGKILL)

    # -- one rank, in its own thread -----------------------------------------------------------------------

    def _run(self, task: RankTask) -> None:
        try:
            code: int | None = self._run_once(task)
            if code is None and self._stopping is None:
                self._events.put(Remark(task.rank, _LOST, is_retry=True))
                code = self._run_once(task)
        except Exception:
            code = OUR_BUG
            with suppress(OSError), (Path(task.folder) / "run.log").open("a", encoding="utf-8") as log:
                log.write(traceback.format_exc())
        if self._stopping is not None or code is None:
            code = INTERRUPTED
        self._events.put(Ended(task.rank, code))

    def _run_once(self, task: RankTask) -> int | None:
        """Return its exit code; None if it is unknown because the fork server died."""
        if self._stopping is not None:
            return INTERRUPTED
        output, their_output = os.pipe()
        line, their_line = socket.socketpair()
        connection = Connection(line.detach())
        self._lines[task.rank] = connection
        log = Path(task.folder) / "run.log"
        copying = threading.Thread(target=self._copy_output, args=(output, log, task.rank), daemon=True)
        following = threading.Thread(target=self._follow_line, args=(connection, task.rank), daemon=True)
        try:
            process = self._spawn(task, their_line.fileno(), their_output)
        finally:
            their_line.close()
            os.close(their_output)
            copying.start()
            following.start()
        if process is None:
            return INTERRUPTED
        with self._lock:
            self._has_started = True
            self._processes[task.rank] = process.pid
            if self._stopping is not None:
                _signal_group(process.pid, self._stopping)
        code = process.wait()
        with self._lock:
            del self._processes[task.rank]
        if code is None:
            _signal_group(process.pid, signal.SIGKILL)
        following.join(timeout=_DRAIN_S)
        copying.join(timeout=_DRAIN_S)
        _signal_group(process.pid, signal.SIGTERM)  # what the script started and left running
        copying.join(timeout=_DRAIN_S)
        (Path(task.folder) / "task.json").unlink(missing_ok=True)
        return code

    def _spawn(self, task: RankTask, line: int, output: int) -> Process | None:
        """Start the rank's process; None if the run is being stopped."""
        with suppress(ForkServerClosed):
            return self._fork_server.fork("rank", task.to_json(), line, output)
        if self._stopping is not None:
            return None
        task_file = Path(task.folder) / "task.json"
        task_file.write_text(task.to_json(), encoding="utf-8")
        return subprocess.Popen(
            [sys.executable, "-u", "-c", _START, str(task_file), str(line), self._fork_server.order()],
            stdin=subprocess.DEVNULL,  # a script that asks for input must not wait for it
            stdout=output,
            stderr=output,
            pass_fds=(line,),
            cwd=self._fork_server.folder,
            start_new_session=True,
        )

    def _copy_output(self, output: int, log_path: Path, rank: int) -> None:
        with os.fdopen(output, "rb", buffering=0) as pipe, log_path.open("wb", buffering=0) as log:
            is_logging = True
            for line in whole_lines(iter(lambda: pipe.read(_CHUNK) or b"", b"")):
                if is_logging:
                    try:
                        log.write(line + b"\n")
                    except OSError:
                        is_logging = False  # the disk is full: the script continues, and its output still goes to the screen
                if self._stopping is None:
                    self._on_line(rank, line.decode("utf-8", errors="replace"))

    def _follow_line(self, connection: Connection, rank: int) -> None:
        with connection:
            for message in read_messages(connection, rank):
                self._events.put(message)


def whole_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield lines without line ends; of a line rewritten with carriage returns (a progress bar), the last state."""
    pending = b""
    for chunk in chunks:
        *lines, pending = (pending + chunk).split(b"\n")
        yield from map(_last_state, lines)
        body = pending.rstrip(b"\r")
        pending = _last_state(body) + pending[len(body) :]  # drop earlier states of a progress bar
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
