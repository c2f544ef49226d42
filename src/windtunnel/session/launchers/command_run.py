"""Run a shell script until it starts a launcher, hand that to the dry run, then let the script go on to its end.

    words ──> host process (protected) ──> shims on PATH ──> Handed: launch, folder, environment ──> ranks
              output lines <── what the ranks print, through the shim <──┘

The first command that is to be simulated is; every further one is listed. A shim waits as long as its ranks run, so
pipes, `&&` and exit codes work as they do without us.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from windtunnel.caches import cache_folder
from windtunnel.capture.launcher_names import LAUNCHERS, MODULES
from windtunnel.devices import DeviceProfile
from windtunnel.errors import ScriptError, UsageError, WindtunnelError
from windtunnel.foreign_files import read_at_most
from windtunnel.isolation.layer import PREFIX, Isolation, SharedView, check_keep_folder
from windtunnel.session.launchers.device_listing import LISTERS
from windtunnel.session.launchers.launch import Given, Launch
from windtunnel.session.launchers.own_workers import SCRIPT
from windtunnel.session.launchers.recognise import Command
from windtunnel.session.launchers.shim import BINARIES, OUTER, SETTINGS, SITE, SOCKET

__all__ = ["CommandRun", "Handed", "adopted", "check_start"]

_START = (
    "import sys; del sys.path[0]; from windtunnel.isolation.entrance import enter_by_order; enter_by_order(sys.argv.pop(1));"
    " from windtunnel.session.launchers.host import start; start()"
)
_SHIM = "import sys; sys.path.append({root!r}); from windtunnel.session.launchers.shim import start; start()"
# A Python that is started by its full path, or from an environment that the script activated, is noticed here.
_SITE = """\
import os, sys

def _hand_over():
    words = list(getattr(sys, "orig_argv", ()))
    if os.environ.get("WINDTUNNEL_RUNS_REALLY") == str(os.getpid()) or len(words) < 2:
        return
    first = next((n for n, word in enumerate(words) if n and not word.startswith("-")), None)
    name = os.path.basename(words[first]) if first is not None else ""
    if name in {launchers!r}:
        os.execv(os.path.join({binaries!r}, name), [name, *words[first + 1:]])
    if "-c" not in words and ("-m" in words or any(word.endswith(".py") for word in words[1:])):
        os.execv(os.path.join({binaries!r}, ".any"), ["python", words[0], *words[1:]])

_hand_over()
sys.path[:] = [path for path in sys.path if path != {site!r}]
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_found = PathFinder.find_spec("sitecustomize")  # the one that is hidden by this file
if _found is not None and _found.loader is not None:
    _found.loader.exec_module(module_from_spec(_found))
"""
_MOST_SCRIPT = 1 << 24
_LAUNCHER_WORDS = re.compile(rb"\b(" + "|".join(map(re.escape, (*LAUNCHERS, *MODULES))).encode() + rb")\b")
_REST_S = 60.0  # for what a script does after its training command
_DRAIN_S = 1.0
_POLL_S = 0.2
_GRACE_S = 2.0
_MOST_NAMED = 3


@dataclass(frozen=True)
class Handed:
    """A command that the script started and that is to be simulated."""

    launch: Launch
    framework: str
    folder: str
    environment: dict[str, str]
    words: tuple[str, ...]


class CommandRun:
    """A program that starts launchers, running inside the protection of files."""

    def __init__(
        self,
        command: Command,
        out: Path,
        given: Given,
        device: DeviceProfile,
        on_line: Callable[[str], None],
        *,
        is_network_allowed: bool = False,
        isolation: str = "auto",
    ) -> None:
        self._command, self._on_line = command, on_line
        self._folder = folder = _shim_folder()
        cache = cache_folder()
        cache.mkdir(
            parents=True, exist_ok=True
        )  # the script may turn out to be MindSpore's: its stubs are kept there
        self._isolation = Isolation([out, folder, cache], is_network_allowed, isolation)
        self._messages: queue.SimpleQueue[dict[str, Any] | int] = queue.SimpleQueue()
        self._first: socket.socket | None = None
        self._job = ""  # what the first asks for; workers of a script's own job all ask for the same
        self._code: int | None = None  # of the script, if it ended before what it left in the background
        self._others: list[str] = []
        self._helpers: list[str] = []
        self._order = self._isolation.order()
        _write_shims(folder, given, device, _names_launcher(command))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen(16)
        self._reading = threading.Thread(target=self._read_output, daemon=True)
        self._lock = threading.Lock()

    def __enter__(self) -> CommandRun:
        output, theirs = os.pipe()
        result, their_result = os.pipe()
        until, self._until = os.pipe()
        words = [sys.executable, "-c", _START, self._order.to_json(), str(their_result), str(until)]
        self._host = subprocess.Popen(
            [*words, *self._command.words],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            pass_fds=(their_result, until),
            cwd=self._command.folder or None,
            env=_environment(self._command, self._folder),
            start_new_session=True,
        )
        for descriptor in (theirs, their_result, until):
            os.close(descriptor)
        self._output = output
        self._reading.start()
        threading.Thread(target=self._wait_for_end, args=(result,), daemon=True).start()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        os.close(self._until)
        with suppress(OSError):
            self._listener.close()
        with suppress(subprocess.TimeoutExpired):
            self._host.wait(_GRACE_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._host.pid, signal.SIGKILL)
        self._host.wait()
        self._reading.join(_DRAIN_S)
        self._isolation.remove()
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait_for_launch(self) -> Handed:
        """Block until the script starts what is to be simulated; raises if it ends before, or starts it wrongly."""
        message = self._messages.get()
        if isinstance(message, int):
            self._code = message
            message = self._wait_for_background()
        if isinstance(message, int):
            self._reading.join(_DRAIN_S)
            raise self._nothing_found(message)
        if message["kind"] == "refused":
            raise UsageError(f"{message['message']} (in {self._name})", message["hint"])
        launch = Launch.from_json(message["launch"])
        return Handed(
            launch, message["framework"], message["folder"], message["environment"], tuple(message["words"])
        )

    def view(self, handed: Handed) -> SharedView:
        """The view of the files that the ranks share with the script."""
        return SharedView(self._order, self._host.pid, handed.folder)

    def send_line(self, text: str) -> None:
        """Print a line of a rank where the launcher's own output would go."""
        self._send({"line": text})

    def finish(self, is_good: bool, logs: Iterable[tuple[str, str, str]] = ()) -> tuple[str, ...]:
        """Let the launcher's command end, wait for the rest of the script, and return what is worth a note."""
        self._send({"exit": 0 if is_good else 1, "logs": list(logs)})
        if self._first is not None:
            self._first.close()
        notes = []
        code = self._wait_for_rest()
        if code is None:
            notes.append(f"{self._name} was stopped {_REST_S:.0f} s after the training command had ended")
        elif code and is_good:
            notes.append(f"{self._name} ended with exit code {code} after the training command")
        if self._others:
            listed = "; ".join(self._others[:_MOST_NAMED])
            more = f" and {len(self._others) - _MOST_NAMED} more" if len(self._others) > _MOST_NAMED else ""
            notes.append(f"not simulated, because {self._name} starts them after the first: {listed}{more}")
        return tuple(notes)

    # -- the script ----------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return shlex.join(self._command.words)

    def _nothing_found(self, code: int) -> WindtunnelError:
        ran = f"; it ran {', '.join(self._helpers[:_MOST_NAMED])}" if self._helpers else ""
        sentence = (
            f"{self._name} ended with exit code {code} and started no launcher and no training script{ran}"
        )
        if code and self._isolation.files().protection == "guard":
            hint = "programs cannot write files, as this run has no copy-on-write layer: give the launcher's command"
            return ScriptError(sentence, hint)
        python, ours = shutil.which("python"), os.path.dirname(sys.executable)
        if code and self._helpers and python is not None and os.path.dirname(python) != ours:
            return ScriptError(
                sentence, hint=f"its python is {python}; for windtunnel's, put {ours} first on PATH"
            )
        if code:
            return ScriptError(sentence, hint="its output is above")
        script = self._helpers[-1].partition(" ")[2] if self._helpers else "train.py"
        return UsageError(sentence, hint=f"windtunnel run {script}")

    def _wait_for_background(self) -> dict[str, Any] | int:
        """The first command of `python train.py &`, which may arrive after the script has ended; else its exit code."""
        assert self._code is not None
        ends = time.monotonic() + _REST_S
        is_alive = True
        while is_alive and time.monotonic() < ends:
            is_alive = _is_in_session(
                self._host.pid
            )  # asked before the wait: what it sent last is not missed
            with suppress(queue.Empty):
                return self._messages.get(timeout=_POLL_S)
        return self._code

    def _wait_for_rest(self) -> int | None:
        """The exit code of the script; None if it was stopped."""
        if self._code is not None:
            return self._code
        ends = time.monotonic() + _REST_S
        while (left := ends - time.monotonic()) > 0:
            try:
                message = self._messages.get(timeout=left)
            except queue.Empty:
                break
            if isinstance(message, int):
                self._reading.join(_DRAIN_S)
                return message
        self._kill()
        return None

    def _kill(self) -> None:
        """End the script; its host ignores the gentle signal and stays for those who share its view."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._host.pid, signal.SIGTERM)

    def _read_output(self) -> None:
        with os.fdopen(self._output, "rb") as lines:
            for line in lines:
                self._on_line(line.decode("utf-8", "replace").rstrip("\r\n").rpartition("\r")[2])

    def _wait_for_end(self, result: int) -> None:
        with os.fdopen(result, "rb") as answer:
            text = answer.read()
        self._messages.put(int(text) if text.strip() else self._host.wait())

    # -- the shims -----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines, suppress(OSError, ValueError):
            message = json.loads(lines.readline())
            if message["kind"] == "helper":
                self._helpers.append(shlex.join(message["words"]))
                connection.close()
                return
            job = message.get("launch", "")
            with self._lock:
                is_first = self._first is None
                if is_first:
                    self._first, self._job = connection, job
            if is_first:
                self._messages.put(message)
                return
            if job and job == self._job and Launch.from_json(job).launcher == SCRIPT:
                with connection:
                    line = "windtunnel: a worker of the job that is simulated; its results are with the job's"
                    connection.sendall(_line({"line": line}) + _line({"exit": 0}))
                return
            text = shlex.join(message["words"])
            self._others.append(text)
            with connection:
                line = f"windtunnel: not simulated, one launcher command is simulated in a run: {text}"
                connection.sendall(_line({"line": line}) + _line({"exit": 0}))

    def _send(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError):  # the shim was killed
            if self._first is not None:
                self._first.sendall(_line(message))


def check_start(executor: str, isolation: str, keep_files: Path | None) -> None:
    """Reject what cannot work before a script is started."""
    if executor != "local":
        raise UsageError(
            "a shell script runs on this machine only", hint="remove --executor, or give the training script"
        )
    if isolation not in ("auto", "guard"):
        raise UsageError(f"unknown isolation {isolation!r}", hint="use auto or guard")
    if keep_files is not None:
        check_keep_folder(keep_files)


@contextmanager
def adopted(environment: Mapping[str, str]) -> Iterator[None]:
    """Use the environment of a command that a script started, as its workers would."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _is_in_session(leader: int) -> bool:
    """Whether the session of a process has another one that is alive."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            state, _, _, session = (
                stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:4]
            )
            if int(session) == leader and state != "Z" and int(stat.parent.name) != leader:
                return True
    return False


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _names_launcher(command: Command) -> bool:
    """Whether the text of a shell script names a launcher."""
    texts = [" ".join(command.words).encode()]
    for word in command.words:
        with suppress(OSError, ValueError):
            if os.path.isfile(word):
                texts.append(read_at_most(Path(word), _MOST_SCRIPT))
    return any(_LAUNCHER_WORDS.search(text) for text in texts)


def _write_shims(folder: Path, given: Given, device: DeviceProfile, has_launcher: bool) -> None:
    facts = {"name": device.id, "memory_bytes": device.memory_bytes, "capability": list(device.capability),
             "count": given.node_size}  # fmt: skip
    settings = {"given": asdict(given), "device": facts, "has_launcher": has_launcher,
                "rank": os.environ.get("RANK_ID")}  # fmt: skip
    (folder / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    binaries, site = folder / BINARIES, folder / SITE
    for place in (binaries, site):
        place.mkdir()
    code = _SHIM.format(root=str(Path(__file__).parents[3]))
    start = shlex.join([sys.executable, "-I", "-c", code, str(folder)])
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name in (*LAUNCHERS, *LISTERS, "python", "python3", f"python{version}"):
        _write_program(binaries / name, f'exec {start} {name} "$@"')
    _write_program(binaries / ".any", f'exec {start} "$@"')
    source = _SITE.format(launchers=LAUNCHERS, binaries=str(binaries), site=str(site))
    (site / "sitecustomize.py").write_text(source, encoding="utf-8")


def _write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)


def _environment(command: Command, folder: Path) -> dict[str, str]:
    found = dict(os.environ)
    if command.outer is not None:
        found |= command.outer.variables_of(0) | {OUTER: command.outer.to_json()}
    found["PATH"] = os.pathsep.join([str(folder / BINARIES), found.get("PATH", os.defpath)])
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder / SITE), found.get("PYTHONPATH", "")]))
    return found


def _shim_folder() -> Path:
    """A folder for the shims, with a path short enough for a socket; the next run removes that of a killed one."""
    place = next((p for p in ("/tmp", "/var/tmp") if os.access(p, os.W_OK)), None)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-shims-", dir=place))
