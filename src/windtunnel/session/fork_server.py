"""Start processes without importing torch each time: fork them from a process that has imported it.

    ForkServer.fork(order, connection, output) ──> the fork server's process ──> Child: its pid, later its exit code

A run has one fork server, started by the first order. If it dies, its children are lost (`Child.wait` returns None) and
it accepts no more orders; the caller then starts a fresh interpreter instead.
"""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from windtunnel.isolation.layer import Isolation
from windtunnel.session.fork_server_program import SIZES

__all__ = ["Child", "ForkServer", "ForkServerClosed"]

# Not `-m`: that puts the working directory first on sys.path, and a json.py in it would shadow the standard one.
# The last argument says how to protect files. That happens before any import that may start a thread.
_START = (
    "import sys; del sys.path[0]; from windtunnel.isolation.entrance import enter_by_order; enter_by_order(sys.argv.pop());"
    " from windtunnel.session.fork_server_program import start; start()"
)
_GRACE_S = 3.0


class ForkServerClosed(Exception):
    """The fork server accepts no orders: it died, or was closed."""


@dataclass(frozen=True)
class Child:
    """A process forked by the fork server, leader of its own session."""

    pid: int
    _code: Future[int | None]

    def wait(self) -> int | None:
        """Return its exit code, negative for a signal; None if the fork server died before it could report it."""
        return self._code.result()


class ForkServer:
    """The parent's side of the fork server."""

    def __init__(self, n_ranks: int, folder: str | None = None, isolation: Isolation | None = None) -> None:
        self._n_ranks = n_ranks  # at most; 0: only for analyses, which need no torch
        self.folder = folder  # working directory; None: that of this process
        self.isolation = isolation  # protects the user's files from scripts; None: it will run no script
        self._lock = threading.Lock()
        self._orders: dict[int, tuple[Future[int], Future[int | None]]] = {}  # number -> its pid, its code
        self._n_orders = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_closed = False

    def fork(self, kind: str, what: Any, line: int, output: int) -> Child:
        """Run "rank", "analyse", "draw" or "detail" in a new process with these two file descriptors."""
        order = pickle.dumps((kind, what))
        started: Future[int] = Future()
        ended: Future[int | None] = Future()
        with self._lock:
            if self._is_closed:
                raise ForkServerClosed
            if self._control is None:
                self._open()
            assert self._control is not None
            self._n_orders += 1
            self._orders[self._n_orders] = (started, ended)
            try:
                socket.send_fds(self._control, [SIZES.pack(self._n_orders, len(order))], [line, output])
                self._control.sendall(order)
            except OSError:
                raise ForkServerClosed from None
        return Child(started.result(), ended)

    def order(self) -> str:
        """Return how a new process must protect files, for its command line."""
        return "" if self.isolation is None else self.isolation.order().to_json()

    def close(self) -> None:
        """Stop it and kill its remaining children."""
        with self._lock:
            self._is_closed = True
            if self._control is not None:
                with suppress(OSError):
                    self._control.shutdown(socket.SHUT_RDWR)
            has_children = any(started.done() for started, _ in self._orders.values())
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                # Without children it may still be importing torch, and has nothing to clean up.
                self._process.wait(_GRACE_S if has_children else 0)
            self._process.kill()
            self._process.wait()

    def _open(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _START, str(theirs.fileno()), str(self._n_ranks), self.order()],
                stdin=subprocess.DEVNULL,  # a script that asks for input must not wait for it
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                cwd=self.folder,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self._control,), daemon=True).start()

    def _listen(self, control: socket.socket) -> None:
        size = 1 + SIZES.size
        with control, control.makefile("rb") as messages:
            while len(message := _read(messages, size)) == size:
                kind, (number, value) = message[:1], SIZES.unpack(message[1:])
                started, ended = self._orders[number]
                if kind == b"B":
                    started.set_result(value)
                    continue
                if not started.done():  # died before its first message
                    started.set_exception(ForkServerClosed())
                ended.set_result(value)
        with self._lock:
            self._is_closed = True
        for started, ended in self._orders.values():
            if not started.done():
                started.set_exception(ForkServerClosed())
            if not ended.done():
                ended.set_result(None)


def _read(messages: Any, size: int) -> bytes:
    try:
        return messages.read(size)
    except OSError:
        return b""
