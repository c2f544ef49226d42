"""Processes without the seconds of importing: forked from an interpreter that has imported windtunnel and its framework.

    run_warm(arguments, cwd, env) ──> the warm interpreter ──> fork ──> main() ──> CompletedProcess
                                            └──> fork ──> the fork server that this command line asks for
    run_warm_python(arguments)    ──> the warm interpreter ──> fork ──> a script, -c or -m ──> CompletedProcess

A fork is as good as a fresh interpreter because nothing but the loop below runs here and no thread is started. Each process
of pytest has a warm interpreter of its own, started with its first command line. What depends on how an interpreter
starts (its encoding, its warnings, a module that is missing, what is not imported) is tested in a process of its own:
see `cli.windtunnel`.

MindSpore is imported where it is installed instead of torch. That is enough for programs on the CPU; a script of a dry run
still has an interpreter of its own, because MindSpore's Ascend plugin reads its environment when it is imported.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace

from windtunnel.frameworks import is_installed

__all__ = [
    "WARM_SUBPROCESS",
    "ask",
    "run_warm",
    "run_warm_python",
    "run_warm_ranks",
    "serve",
    "warm_fork_servers",
    "warm_python",
]

_ROOT = Path(__file__).parents[2]
_SERVE = "import sys; from tests.commands.warm import serve; serve(sys.argv[1], int(sys.argv[2]))"
_running: dict[int, str] = {}  # process id of a test process -> the address of its warm interpreter


def run_warm(arguments, cwd, env, timeout):
    """`windtunnel arguments…`, as subprocess.run does it with captured output; stdin is a pipe that nobody writes to."""
    return _run("command", arguments, cwd, env, timeout)


def run_warm_python(arguments, cwd=None, env=None, timeout=900):
    """`python arguments…` as above: [-W action], a script, or -c and code, or -m and a module, its arguments."""
    return _run("python", [*map(str, arguments)], cwd or _ROOT, env or dict(os.environ), timeout)


def run_warm_ranks(ranks, variables=None):
    """`run_warm_python` for the arguments (and environments) of several processes that wait for each other."""
    _address()
    more = [
        {**os.environ, **{name: str(value) for name, value in each.items()}}
        for each in variables or [{}] * len(ranks)
    ]
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda arguments, env: run_warm_python(arguments, env=env), ranks, more))


def run_warm_command(command, cwd=None, env=None, timeout=900, check=False, **captured):
    """In place of subprocess.run with captured output, where the command is this interpreter."""
    assert command[0] == sys.executable, command
    arguments = list(map(str, command[1:]))
    assert captured.pop("capture_output", False), "its output is captured always"
    if arguments[:2] == ["-W", "ignore"]:
        arguments = arguments[2:]
    if arguments[:2] == ["-m", "windtunnel.commands.main"]:
        done = run_warm(arguments[2:], cwd or os.getcwd(), env or dict(os.environ), timeout)
    else:
        done = run_warm_python(arguments, cwd or os.getcwd(), env, timeout)
    if check:
        done.check_returncode()
    return done


# For a module that starts programs with subprocess.run.
WARM_SUBPROCESS = SimpleNamespace(run=run_warm_command, TimeoutExpired=subprocess.TimeoutExpired)


def warm_fork_servers(monkeypatch):
    """Let dry runs of this process start their fork servers from the warm interpreter."""
    from windtunnel.session import fork_server

    monkeypatch.setattr(fork_server, "subprocess", _fork_servers(_address()))


def warm_python():
    """In place of sys.executable in a command line of a shell that starts `-m windtunnel.commands.main`."""
    return f"{sys.executable} {Path(__file__).with_name('warm_client.py')} {_address()}"


def _run(kind, arguments, cwd, env, timeout):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        silent, _open_end = os.pipe()
        try:
            request = {"kind": kind, "arguments": arguments, "cwd": str(cwd), "env": env}
            code = ask(_address(), request, [silent, out.fileno(), err.fileno()]).wait(timeout)
        finally:
            os.close(silent)
            os.close(_open_end)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace").replace("\r\n", "\n"))
    name = "windtunnel" if kind == "command" else "python"
    return subprocess.CompletedProcess([name, *arguments], code, *texts)


def _address():
    address = _running.get(os.getpid())
    if address is None:
        address = str(Path(tempfile.mkdtemp(prefix="windtunnel-warm-")) / "socket")
        ready, theirs = os.pipe()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, address, str(theirs)],
            pass_fds=[theirs],
            cwd=_ROOT,
            env=environment,
        )
        os.close(theirs)
        assert os.read(ready, 1) == b"!", "the warm interpreter did not start"
        os.close(ready)
        atexit.register(_end, process, Path(address).parent)
        _running[os.getpid()] = address
    return address


def _end(process, folder):
    process.kill()  # if this process is killed instead, the warm interpreter notices
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


class _Process:
    """A process that the warm interpreter forked for us: as much of Popen as is needed."""

    def __init__(self, answers):
        self._answers = answers
        self.pid = int(answers.readline())
        self._code = None

    def wait(self, timeout=None):
        if self._code is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("windtunnel", timeout)
            line = self._answers.readline()
            self._code = int(line) if line else -signal.SIGKILL
        return self._code

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def ask(address, request, fds):
    """Have the warm interpreter at an address fork a process with these streams."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    order = json.dumps(request).encode()
    socket.send_fds(connection, [len(order).to_bytes(8, "little")], fds)
    connection.sendall(order)
    answers = connection.makefile("r")
    connection.close()  # the file keeps it open
    return _Process(answers)


# -- the warm interpreter --------------------------------------------------------------------------------------


def serve(address, ready):
    """Fork a process for each order until the process that started this one is gone."""
    _import_everything()
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    os.write(ready, b"!")
    wake, wake_up = socket.socketpair()
    for end in (wake, wake_up):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_up.fileno())
    children = {}
    parent = os.getppid()
    while os.getppid() == parent:
        found, _, _ = select.select([listener, wake], [], [], 1.0)
        if wake in found:
            with contextlib.suppress(BlockingIOError):
                wake.recv(1024)
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            with contextlib.suppress(OSError), children.pop(pid) as connection:
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        if listener in found:
            connection, _ = listener.accept()
            request, fds = _read(connection)
            pid = os.fork()
            if pid == 0:
                _be_child(request, fds, address, [listener, wake, wake_up, connection, *children.values()])
            for fd in fds:
                os.close(fd)
            connection.sendall(f"{pid}\n".encode())
            children[pid] = connection
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _import_everything():
    import matplotlib.pyplot  # noqa: F401

    from windtunnel.commands import compare, devices, recover, remat, replay, run, view
    from windtunnel.session import fork_server_program, time_stage

    assert all((compare, devices, recover, remat, replay, run, view, fork_server_program, time_stage))
    if is_installed("torch"):
        from windtunnel.capture.pytorch.preload import preload

        preload(is_for_many=True)
    else:
        import mindspore  # noqa: F401


def _read(connection):
    head, fds, _, _ = socket.recv_fds(connection, 8, 3)
    length = int.from_bytes(head, "little")
    order = b""
    while len(order) < length:
        order += connection.recv(length - len(order))
    return json.loads(order), fds


def _be_child(request, fds, address, ends):
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in ends:
            end.close()
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        if request["kind"] == "command":
            code = _be_command(request["arguments"], fds, address)
        elif request["kind"] == "python":
            code = _be_python(request["arguments"], fds, address)
        else:
            _be_fork_server(request["arguments"], fds)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        if "mindspore" in sys.modules:  # which writes files when Python ends
            ctypes.pythonapi.Py_Exit(code)
        with contextlib.suppress(BaseException):
            threading._shutdown()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _be_command(arguments, fds, address):
    from windtunnel.commands.main import main
    from windtunnel.session import fork_server

    _take_streams(fds)
    fork_server.subprocess = _fork_servers(address)
    sys.argv = ["-c", *arguments]
    return main()


def _fork_servers(address):
    """In place of subprocess where a fork server is started: it is forked from the warm interpreter too."""

    def start(command, *, pass_fds, cwd, **rest):
        order = {
            "kind": "fork server",
            "arguments": command[command.index("-c") + 2 :],
            "cwd": cwd or os.getcwd(),
            "env": dict(os.environ),
        }
        return ask(address, order, list(pass_fds))

    return SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)


def _be_python(arguments, fds, address):
    from windtunnel.session import fork_server

    _take_streams(fds)
    fork_server.subprocess = _fork_servers(address)
    if arguments[0] == "-W":
        warnings.simplefilter(arguments[1])
        arguments = arguments[2:]
    kind, rest = arguments[0], arguments[1:]
    del sys.path[0]
    if kind == "-c":
        sys.argv, main = ["-c", *rest[1:]], ModuleType("__main__")
        sys.path.insert(0, "")
        sys.modules["__main__"] = main
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")
    return 0


def _take_streams(fds):
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _be_fork_server(arguments, fds):
    from windtunnel.isolation.entrance import enter_by_order
    from windtunnel.session.fork_server_program import start

    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(nothing, target)
    sys.argv = ["-c", str(fds[0]), *arguments[1:]]
    del sys.path[0]
    enter_by_order(sys.argv.pop())
    start()
