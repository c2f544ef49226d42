"""Processes without the seconds of importing torch: forked from one that has imported it.

    Nursery.fork(order, line, output) ──> the nursery's process ──> Child: its pid, and later its exit code

One nursery is started for a run, on its first order. If it dies, its children are lost (`Child.wait` says None) and
it takes no more orders; the caller then starts a fresh interpreter instead.
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

from windtunnel.commands.nursery_program import SIZES
from windtunnel.isolation.layer import Isolation

__all__ = ["Child", "Nursery", "NurseryClosed"]

# Not `-m`: that puts the working directory before our own imports, and a json.py there would be ours.
# The last argument says how to protect files: that comes before every import which may start a thread.
_START = (
    "import sys; del sys.path[0]; from windtunnel.isolation.entrance import enter_by_order; enter_by_order(sys.argv.pop());"
    " from windtunnel.commands.nursery_program import start; start()"
)
_GRACE_S = 3.0


class NurseryClosed(Exception):
    """The nursery takes no orders: it died, or was closed."""


@dataclass(frozen=True)
class Child:
    """A process the nursery forked, the leader of its own session."""

    pid: int
    _code: Future[int | None]

    def wait(self) -> int | None:
        """Its exit code, negative for a signal; None if the nursery died before it could tell."""
        return self._code.result()


class Nursery:
    """The parent's side of the nursery."""

    def __init__(self, n_ranks: int, folder: str | None = None, isolation: Isolation | None = None) -> None:
        self._n_ranks = n_ranks  # it may be asked for; 0: it is only for analyses, which need no torch
        self.folder = folder  # to work in; None: where this process is
        self.isolation = isolation  # of the files of whatever runs scripts; None: it will run none
        self._lock = threading.Lock()
        self._orders: dict[int, tuple[Future[int], Future[int | None]]] = {}  # number -> its pid, its code
        self._n_orders = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_closed = False

    def fork(self, kind: str, what: Any, line: int, output: int) -> Child:
        """Run "rank", "analyse" or "draw" in a new process with these two file descriptors."""
        order = pickle.dumps((kind, what))
        born: Future[int] = Future()
        ended: Future[int | None] = Future()
        with self._lock:
            if self._is_closed:
                raise NurseryClosed
            if self._control is None:
                self._open()
            assert self._control is not None
            self._n_orders += 1
            self._orders[self._n_orders] = (born, ended)
            try:
                socket.send_fds(self._control, [SIZES.pack(self._n_orders, len(order))], [line, output])
                self._control.sendall(order)
            except OSError:
                raise NurseryClosed from None
        return Child(born.result(), ended)

    def order(self) -> str:
        """How a new process is to protect files, for its command line."""
        return "" if self.isolation is None else self.isolation.order().to_json()

    def close(self) -> None:
        """End it; whatever it still runs is killed."""
        with self._lock:
            self._is_closed = True
            if self._control is not None:
                with suppress(OSError):
                    self._control.shutdown(socket.SHUT_RDWR)
            has_children = any(born.done() for born, _ in self._orders.values())
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                # Without children it may still be importing torch, and has nothing to end.
                self._process.wait(_GRACE_S if has_children else 0)
            self._process.kill()
            self._process.wait()

    def _open(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _START, str(theirs.fileno()), str(self._n_ranks), self.order()],
                stdin=subprocess.DEVNULL,  # nobody is there to answer: a script that asks must not wait
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
                born, ended = self._orders[number]
                if kind == b"B":
                    born.set_result(value)
                    continue
                if not born.done():  # died before its first word
                    born.set_exception(NurseryClosed())
                ended.set_result(value)
        with self._lock:
            self._is_closed = True
        for born, ended in self._orders.values():
            if not born.done():
                born.set_exception(NurseryClosed())
            if not ended.done():
                ended.set_result(None)


def _read(messages: Any, size: int) -> bytes:
    try:
        return messages.read(size)
    except OSError:
        return b""
