"""Run simulated ranks as tasks of a Ray cluster; no file system need be shared with it.

    RankTask ──> Ray task: a LocalExecutor on a worker ──> its files' bytes, exit code ──> rankR/, Ended
                       lines, steps, mail <──> hub (an actor) <──> this process

A task whose worker dies is run again by Ray. Mail goes through the hub to this process, which decides as it does for
ranks of this machine; a task that waits for mail gives its core back meanwhile.
"""

from __future__ import annotations

import asyncio
import atexit
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
from windtunnel.commands.executor import INTERRUPTED, Ended, Events, Fetch, OnLine, Remark
from windtunnel.commands.local_executor import LocalExecutor
from windtunnel.commands.nursery import Nursery
from windtunnel.commands.rank import OUR_BUG
from windtunnel.errors import UsageError
from windtunnel.isolation.changes import Files
from windtunnel.isolation.layer import Isolation, together

__all__ = ["RayExecutor"]

_RETRIES = 3  # of a rank whose worker or machine died
_LINES_EVERY_S = 0.3
_MOST_WAITING = 100_000  # ranks that may wait for mail at the same time
_CONNECT_S = 10.0
_TRIES_HERE = 3  # Ray gives a node of its own 30 s to come up, and a busy machine may need more
_CHECK = "check the address with `ray status --address ADDRESS`, or leave --executor out"
_AGAIN = "a Ray worker died while it ran this rank: it was run again"
_GONE = f"the Ray worker of this rank died {_RETRIES + 1} times, often because memory ran out"
# Variables Ray sets for its own tasks: a rank must not believe that it has no card.
_SET_BY_RAY = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")

_nursery: tuple[Nursery, Path] | None = None  # of a worker: kept for all the ranks it will run


class RayExecutor:
    """Ranks as tasks of Ray; one thread here follows each of them."""

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
        self._files: list[Files] = []  # what each rank's worker saw
        self._is_ours = not ray.is_initialized()
        self._is_shipping = self._is_ours and _connect(where.partition(":")[2], _folder_elsewhere(script))
        self._folder = os.getcwd()
        self.n_slots = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._hub = _Hub.options(num_cpus=0, max_concurrency=_MOST_WAITING).remote()
        self._tasks: dict[int, Any] = {}  # rank -> reference to what its task will return
        self._last_words: dict[int, threading.Event] = {}
        self._n_begun: dict[int, int] = {}
        self._is_stopping = False
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, task: RankTask) -> None:
        ships_script = self._is_shipping and not task.is_module
        sent = replace(task, script=_as_sent(task.script)) if ships_script else task
        is_beside = ships_script and _folder_elsewhere(task.script) is not None
        folder = None if self._is_shipping else self._folder
        self._last_words[task.rank] = threading.Event()
        reference = _run_rank.options(max_retries=_RETRIES).remote(
            self._hub, sent.to_json(), folder, self._protection, is_beside
        )
        self._tasks[task.rank] = reference
        threading.Thread(target=self._follow, args=(task, reference), daemon=True).start()

    def answer(self, rank: int, payload: bytes | None) -> None:
        self._hub.answer.remote(rank, payload)

    def stop(self, number: signal.Signals) -> None:
        """Ray cannot interrupt politely and still return files: what the ranks recorded is lost."""
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
        """Wait for the rank, put its files where they belong; returns its exit code."""
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
        self._last_words[task.rank].wait(timeout=10.0)  # what it posted arrives before its end
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
            self._last_words[rank].set()
        elif isinstance(what, list):
            for line in what:
                self._on_line(rank, line)
        else:
            self._events.put(what)


def _connect(address: str, folder: Path | None = None) -> bool:
    """Connect, or start Ray on this machine; True if the current folder was sent along, and the script's if it is another."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = address or os.environ.get("RAY_ADDRESS", "")
    is_elsewhere = bool(address)
    _check_address(address)
    sent = {"working_dir": os.getcwd()} | ({"py_modules": [str(folder)]} if folder is not None else {})
    more = {"runtime_env": sent} if is_elsewhere else {"include_dashboard": False}
    for n_left in reversed(range(1 if is_elsewhere else _TRIES_HERE)):
        try:
            ray.init(address=address or None, logging_level="ERROR", log_to_driver=False, **more)
        except Exception as error:  # what it says of a node that came up late is no class of its own
            ray.shutdown()
            if n_left:
                continue
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            place = f"the Ray cluster at {address}" if address else "Ray on this machine"
            raise UsageError(f"cannot use {place}: {reason}", hint=_CHECK) from error
        break
    return is_elsewhere


def _check_address(address: str) -> None:
    """Ray itself would wait for minutes for a machine that does not answer."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return  # a name Ray knows, such as auto
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"no Ray cluster answers at {address}: {reason}", hint=_CHECK) from error


def _folder_elsewhere(script: str) -> Path | None:
    """The folder of a script that does not lie below the current one."""
    path = Path(script).resolve()
    is_elsewhere = path.is_file() and not path.is_relative_to(Path.cwd().resolve())
    return path.parent if is_elsewhere and path.parent.name else None


def _as_sent(script: str) -> str:
    """From the current folder, or if it is another one that was sent, from the parent of that."""
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
    """Where tasks and the process that started them meet."""

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
    hub: Any, task_json: str, folder: str | None, protection: tuple[bool, str], is_beside: bool
) -> tuple[int, dict[str, bytes], Files]:
    """Run one rank on this worker; returns its exit code, the files of its run, and what it would have written."""
    nursery, place = _nursery_of_worker(folder, protection)
    with tempfile.TemporaryDirectory(prefix="rank-", dir=place) as own:
        task = replace(RankTask.from_json(task_json), folder=own)
        if is_beside:
            task = replace(task, script=_found_beside(task.script))
        hub.tell.remote(task.rank, "begin")
        code = _run_here(hub, task, nursery)
        hub.tell.remote(task.rank, "end")
        assert nursery.isolation is not None
        written = nursery.isolation.files()
        return code, {path.name: path.read_bytes() for path in Path(own).iterdir()}, written


def _found_beside(script: str) -> str:
    """A script whose folder was sent beside the working folder: Ray puts that where modules are found."""
    here = Path.cwd().resolve()
    places = [Path(entry) / script for entry in sys.path if Path(entry).resolve() != here]
    return next((str(path) for path in places if path.is_file()), script)


def _run_here(hub: Any, task: RankTask, nursery: Nursery) -> int:
    events: Events = Events()
    lines: list[str] = []
    executor = LocalExecutor(events, nursery, lambda rank, line: lines.append(line))
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


def _nursery_of_worker(folder: str | None, protection: tuple[bool, str]) -> tuple[Nursery, Path]:
    """The worker's nursery, and the folder that is not protected in it: for the files of its ranks."""
    global _nursery
    if _nursery is None:
        for name in _SET_BY_RAY:
            os.environ.pop(name, None)
        place = Path(tempfile.mkdtemp(prefix="windtunnel-"))
        isolation = Isolation([place], *protection)
        _nursery = Nursery(_MOST_WAITING, folder, isolation), place
        atexit.register(_close_worker)
    return _nursery


def _close_worker() -> None:
    assert _nursery is not None
    nursery, place = _nursery
    nursery.close()
    if nursery.isolation is not None:
        nursery.isolation.remove()
    shutil.rmtree(place, ignore_errors=True)
