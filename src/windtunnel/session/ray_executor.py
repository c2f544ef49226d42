"""Run simulated ranks as tasks on a Ray cluster; a shared file system is not needed.

    RankTask ──> Ray task: a LocalExecutor on a worker ──> contents of its files, exit code ──> rankR/, Ended
                   lines, steps, messages <──> hub (an actor) <──> this process

Ray runs a task again if its worker dies. Messages go through the hub to this process, which answers them as for local
ranks; a task releases its core while it waits for a message.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from windtunnel.capture.task import RankTask
from windtunnel.errors import UsageError
from windtunnel.exit_codes import INTERRUPTED
from windtunnel.isolation.file_changes import Files
from windtunnel.isolation.layer import Isolation, together
from windtunnel.session.executor import Ended, Events, Fetch, OnLine, Remark
from windtunnel.session.fork_server import ForkServer
from windtunnel.session.local_executor import LocalExecutor
from windtunnel.session.rank_process import OUR_BUG

__all__ = ["RayExecutor"]

_RETRIES = 3  # of a rank whose worker or machine died
_LINES_EVERY_S = 0.3
_MOST_WAITING = 100_000  # ranks that may wait for messages at the same time
_CONNECT_S = 10.0
_TRIES_HERE = 3  # Ray gives a local node 30 s to start, and a busy machine may need more
_CHECK = "check the address with `ray status --address ADDRESS`, or remove --executor"
_AGAIN = "a Ray worker died while it ran this rank: the rank was run again"
_GONE = f"the Ray worker of this rank died {_RETRIES + 1} times, often because it ran out of memory"
# Variables that Ray sets for its tasks: with them a rank would see no device.
_SET_BY_RAY = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")

_fork_server: tuple[ForkServer, Path] | None = None  # of a worker: kept for all ranks it runs


class RayExecutor:
    """Runs ranks as Ray tasks, with one thread here per rank."""

    def __init__(
        self,
        where: str,
        events: Events,
        on_line: OnLine,
        is_network_allowed: bool = False,
        isolation: str = "auto",
        script: str = "",
    ) -> None:
        self._events, self._on_line = events, on_line
        self._protection = (is_network_allowed, isolation)
        self._files: list[Files] = []  # files written by the script, for each rank
        self._is_ours = not ray.is_initialized()
        self._is_shipping = self._is_ours and _connect(where.partition(":")[2], _folder_elsewhere(script))
        self._folder = os.getcwd()
        self.n_slots = max(1, int(ray.cluster_resources().get("CPU", 1)))
        hub: Any = _Hub  # `ray.remote` made an actor class of it
        self._hub = hub.options(num_cpus=0, max_concurrency=_MOST_WAITING).remote()
        self._tasks: dict[int, Any] = {}  # rank -> reference to what its task will return
        self._has_ended: dict[int, threading.Event] = {}
        self._n_begun: dict[int, int] = {}
        self._is_stopping = False
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, task: RankTask) -> None:
        ships_script = self._is_shipping and not task.is_module
        sent = replace(task, script=_as_sent(task.script)) if ships_script else task
        is_uploaded_apart = ships_script and _folder_elsewhere(task.script) is not None
        folder = None if self._is_shipping else self._folder
        self._has_ended[task.rank] = threading.Event()
        reference = _run_rank.options(max_retries=_RETRIES).remote(
            self._hub, sent.to_json(), folder, self._protection, is_uploaded_apart
        )
        self._tasks[task.rank] = reference
        threading.Thread(target=self._follow, args=(task, reference), daemon=True).start()

    def answer(self, rank: int, payload: bytes | None) -> None:
        self._hub.answer.remote(rank, payload)

    def stop(self, number: signal.Signals) -> None:
        """Stop every rank. Ray cannot interrupt a task and still return its files: the recordings are lost."""
        self._is_stopping = True
        for reference in self._tasks.values():
            with suppress(RayError):
                ray.cancel(reference, force=True)

    def files(self) -> Files | None:
        return together(self._files) if self._files else None

    def close(self) -> None:
        self.stop(signal.SIGKILL)
        with suppress(RayError):
            ray.kill(self._hub)
        if self._is_ours:
            ray.shutdown()

    def _follow(self, task: RankTask, reference: Any) -> None:
        code = self._result(task, reference)
        del self._tasks[task.rank]
        self._events.put(Ended(task.rank, INTERRUPTED if self._is_stopping else code))

    def _result(self, task: RankTask, reference: Any) -> int:
        """Wait for the rank and write its files to its folder; returns its exit code."""
        try:
            code, files, written = ray.get(reference)
            self._files.append(written)
        except TaskCancelledError:
            return INTERRUPTED
        except RayTaskError as error:
            _write_log(task, str(error))
            return OUR_BUG
        except RayError as error:
            _write_log(task, f"{error}\nwindtunnel: {_GONE}")
            self._events.put(Remark(task.rank, _GONE))
            return -signal.SIGKILL
        self._has_ended[task.rank].wait(timeout=10.0)  # until all messages it posted have arrived
        try:
            for name, content in files.items():
                (Path(task.folder) / name).write_bytes(content)
        except OSError:
            _write_log(task, traceback.format_exc())
            return OUR_BUG
        return code

    def _listen(self) -> None:
        with suppress(RayError):  # the hub was closed
            while True:
                for rank, what in ray.get(self._hub.take.remote()):
                    self._hear(rank, what)

    def _hear(self, rank: int, what: Any) -> None:
        if what == "begin":
            self._n_begun[rank] = self._n_begun.get(rank, 0) + 1
            if self._n_begun[rank] > 1:
                self._events.put(Remark(rank, _AGAIN, is_retry=True))
        elif what == "end":
            self._has_ended[rank].set()
        elif isinstance(what, list):
            for line in what:
                self._on_line(rank, line)
        else:
            self._events.put(what)


def _connect(address: str, folder: Path | None = None) -> bool:
    """Connect, or start Ray on this machine; returns whether the current folder (and the script's) was uploaded."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = address or os.environ.get("RAY_ADDRESS", "")
    is_elsewhere = bool(address)
    _check_address(address)
    sent = {"working_dir": os.getcwd()} | ({"py_modules": [str(folder)]} if folder is not None else {})
    more = {"runtime_env": sent} if is_elsewhere else {"include_dashboard": False}
    for n_left in reversed(range(1 if is_elsewhere else _TRIES_HERE)):
        try:
            ray.init(address=address or None, logging_level=logging.ERROR, log_to_driver=False, **more)
        except Exception as error:  # a node that started too late has no exception class of its own
            ray.shutdown()
            if n_left:
                continue
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            place = f"the Ray cluster at {address}" if address else "Ray on this machine"
            raise UsageError(f"cannot use {place}: {reason}", hint=_CHECK) from error
        break
    return is_elsewhere


def _check_address(address: str) -> None:
    """Check that the address answers: Ray itself would wait for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return  # a name Ray knows, such as auto
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"no Ray cluster answers at {address}: {reason}", hint=_CHECK) from error


def _folder_elsewhere(script: str) -> Path | None:
    """Return the folder of a script that is not below the current folder."""
    path = Path(script).resolve()
    is_elsewhere = path.is_file() and not path.is_relative_to(Path.cwd().resolve())
    return path.parent if is_elsewhere and path.parent.name else None


def _as_sent(script: str) -> str:
    """Return the script's path relative to the current folder, or to the parent of its own uploaded folder."""
    path, folder = Path(script).resolve(), _folder_elsewhere(script)
    if folder is not None:
        return str(path.relative_to(folder.parent))
    return str(path.relative_to(Path.cwd().resolve())) if path.is_file() else script


def _write_log(task: RankTask, text: str) -> None:
    with suppress(OSError), (Path(task.folder) / "run.log").open("a", encoding="utf-8") as log:
        log.write(text + "\n")


# -- on the cluster ----------------------------------------------------------------------------------------


@ray.remote
class _Hub:
    """Passes messages between the tasks and the process that started them."""

    def __init__(self) -> None:
        self._heard: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self._answers: dict[int, asyncio.Future[bytes | None]] = {}

    async def tell(self, rank: int, what: Any) -> None:
        await self._heard.put((rank, what))

    async def take(self) -> list[tuple[int, Any]]:
        taken = [await self._heard.get()]
        while not self._heard.empty():
            taken.append(self._heard.get_nowait())
        return taken

    async def fetch(self, fetch: Fetch) -> bytes | None:
        answer = self._answers[fetch.rank] = asyncio.get_running_loop().create_future()
        await self._heard.put((fetch.rank, fetch))
        return await answer

    async def answer(self, rank: int, payload: bytes | None) -> None:
        answer = self._answers.pop(rank, None)
        if answer is not None and not answer.done():
            answer.set_result(payload)


@ray.remote(num_cpus=1)
def _run_rank(
    hub: Any, task_json: str, folder: str | None, protection: tuple[bool, str], is_uploaded_apart: bool
) -> tuple[int, dict[str, bytes], Files]:
    """Run one rank on this worker; returns its exit code, its output files, and the files the script would have written."""
    fork_server, place = _fork_server_of_worker(folder, protection)
    with tempfile.TemporaryDirectory(prefix="rank-", dir=place) as own:
        task = replace(RankTask.from_json(task_json), folder=own)
        if is_uploaded_apart:
            task = replace(task, script=_find_uploaded(task.script))
        hub.tell.remote(task.rank, "begin")
        code = _run_here(hub, task, fork_server)
        hub.tell.remote(task.rank, "end")
        assert fork_server.isolation is not None
        written = fork_server.isolation.files()
        return code, {path.name: path.read_bytes() for path in Path(own).iterdir()}, written


def _find_uploaded(script: str) -> str:
    """Find a script whose own folder was uploaded: Ray adds that folder to sys.path."""
    here = Path.cwd().resolve()
    places = [Path(entry) / script for entry in sys.path if Path(entry).resolve() != here]
    return next((str(path) for path in places if path.is_file()), script)


def _run_here(hub: Any, task: RankTask, fork_server: ForkServer) -> int:
    events: Events = Events()
    lines: list[str] = []
    executor = LocalExecutor(events, fork_server, lambda rank, line: lines.append(line))
    executor.start(task)
    while True:
        try:
            event = events.get(timeout=_LINES_EVERY_S)
        except Empty:
            event = None
        if lines:
            said, lines[:] = lines[:], []
            hub.tell.remote(task.rank, said)
        if isinstance(event, Ended):
            return event.code
        if isinstance(event, Fetch):
            executor.answer(task.rank, ray.get(hub.fetch.remote(event)))
        elif event is not None:
            hub.tell.remote(task.rank, event)


def _fork_server_of_worker(folder: str | None, protection: tuple[bool, str]) -> tuple[ForkServer, Path]:
    """Return the worker's fork server, and the unprotected folder for the files of its ranks."""
    global _fork_server
    if _fork_server is None:
        for name in _SET_BY_RAY:
            os.environ.pop(name, None)
        place = Path(tempfile.mkdtemp(prefix="windtunnel-"))
        isolation = Isolation([place], *protection)
        _fork_server = ForkServer(_MOST_WAITING, folder, isolation), place
        atexit.register(_close_worker)
    return _fork_server


def _close_worker() -> None:
    assert _fork_server is not None
    fork_server, place = _fork_server
    fork_server.close()
    if fork_server.isolation is not None:
        fork_server.isolation.remove()
    shutil.rmtree(place, ignore_errors=True)
