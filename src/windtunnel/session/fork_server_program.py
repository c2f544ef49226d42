"""The program of the fork server: import torch once, then fork a process for every order.

    order (with two file descriptors) ──> fork ──> started (pid) ... ended (exit code) ──> ForkServer

Only the loop below runs here, and no thread is started, so that a fork is as good as a fresh interpreter, without the
seconds and the memory of importing torch each time. When the connection is closed, every child is killed.
"""

from __future__ import annotations

import gc
import os
import pickle
import random
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from windtunnel.capture.task import RankTask
from windtunnel.frameworks import load
from windtunnel.session.rank_process import OUR_BUG, be_rank

__all__ = ["SIZES", "start", "tell"]

SIZES = struct.Struct(
    "=qq"
)  # before an order: its number and length; in a reply: its number, and pid or exit code


def start() -> None:
    """Serve orders until the socket is closed; arguments: its file descriptor, and the number of ranks at most."""
    n_ranks = int(sys.argv[2])
    if n_ranks:
        with suppress(Exception):  # if torch cannot be imported, each rank reports it in its own log
            load("windtunnel.capture.pytorch.preload", "torch").preload(is_for_many=n_ranks > 1)
    if n_ranks != 1:
        _load_work()
        gc.collect()
        gc.freeze()  # garbage collection in a child must not touch, and so copy, the pages shared with this process
    control = socket.socket(fileno=int(sys.argv[1]))
    del sys.argv[1:]
    children: dict[int, int] = {}  # process id -> number of its order
    wake, wake_up = socket.socketpair()
    for end in (wake, wake_up):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_up.fileno())
    while True:
        ready, _, _ = select.select([control, wake], [], [])
        if wake in ready:
            with suppress(BlockingIOError):
                wake.recv(1024)
            _report_ended(control, children)
        if control in ready and not _follow_order(control, (wake, wake_up), children):
            break
    for pid in children:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


def _report_ended(control: socket.socket, children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        if pid in children:
            tell(control, b"E", children.pop(pid), os.waitstatus_to_exitcode(status))


def _follow_order(control: socket.socket, wake: tuple[socket.socket, ...], children: dict[int, int]) -> bool:
    """Read one order and fork; returns False if the connection is closed."""
    head, fds, _, _ = socket.recv_fds(control, SIZES.size, 2)
    if not head:
        return False
    number, length = SIZES.unpack(head)
    order = b""
    while len(order) < length:
        part = control.recv(length - len(order))
        if not part:
            return False
        order += part
    pid = os.fork()
    if pid == 0:
        _be_child(number, order, fds, control, wake)
    children[pid] = number
    for fd in fds:
        os.close(fd)
    return True


def _be_child(
    number: int, order: bytes, fds: list[int], control: socket.socket, wake: tuple[socket.socket, ...]
) -> NoReturn:
    code = OUR_BUG
    try:
        os.setsid()  # so that signals reach the script and everything it starts
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        tell(control, b"B", number, os.getpid())
        for end in (control, *wake):
            end.close()
        line, output = fds
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        _forget_random_state()
        kind, what = pickle.loads(order)
        if kind == "rank":
            be_rank(RankTask.from_json(what), Connection(line))
        _work_on(kind, what, Connection(line))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _load_work() -> Any:
    from windtunnel.session import rank_analysis  # late: a process that only runs ranks does not need it

    return rank_analysis


def _work_on(kind: str, what: tuple[Any, ...], line: Connection) -> None:
    """Do the work and send the result."""
    work = _load_work()
    if kind == "analyse":
        _analyse(work.analyse_rank(*what), line, may_wait=what[0].writes_page)
        return
    job: Callable[..., Any] = {"draw": work.draw_pictures, "detail": work.detail_rank}[kind]
    line.send_bytes(pickle.dumps(job(*what)))


def _analyse(analysis: Any, line: Connection, may_wait: bool) -> None:
    """Send the finding and how much memory this process holds; then wait to be asked for the detail, or for the end."""
    waits = may_wait and analysis.recorded is not None
    line.send_bytes(pickle.dumps((analysis.finding, analysis.recorded.n_bytes if waits else None)))
    if waits:
        with suppress(EOFError, OSError):  # let go
            line.send_bytes(pickle.dumps(analysis.detail(pickle.loads(line.recv_bytes()))))


def _forget_random_state() -> None:
    """Reseed: forks would otherwise draw the same random numbers, which fresh interpreters do not."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def tell(control: socket.socket, kind: bytes, number: int, value: int) -> None:
    """Send one short message in a single write: a child and the fork server may send at the same time."""
    with suppress(OSError):
        control.sendall(kind + SIZES.pack(number, value))
