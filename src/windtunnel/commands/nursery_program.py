"""The program of the nursery: import torch once, then fork a process for every order.

    order (with two file descriptors) ──> fork ──> born ... ended with its code ──> whoever ordered

Nothing but the loop below ever runs here, and no thread is started, so that a fork is as good as a fresh
interpreter, without the seconds and the memory that importing torch costs each of them. When nobody is there to
give orders any more, every child is ended.
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
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from windtunnel.capture.task import RankTask
from windtunnel.commands.rank import OUR_BUG, be_rank
from windtunnel.frameworks import load

__all__ = ["SIZES", "start", "tell"]

SIZES = struct.Struct("=qq")  # before an order: its number, its length; in an answer: number, pid or code


def start() -> None:
    """Serve orders until the socket is closed; on the command line: its number, and how many ranks may come."""
    n_ranks = int(sys.argv[2])
    if n_ranks:
        with suppress(Exception):  # whatever is wrong with torch, each rank will say so in its own log
            load("commands", "preload", "torch").preload(is_for_many=n_ranks > 1)
    if n_ranks != 1:
        _work_on("nothing", ())
        gc.collect()
        gc.freeze()  # a collection in a child need not touch, and so copy, what was imported here
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
    """Read one order and fork; False if there are no more."""
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
        os.setsid()  # what the script starts ends with it, and an interrupt reaches all of it
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
        Connection(line).send_bytes(pickle.dumps(_work_on(kind, what)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _work_on(kind: str, what: tuple[Any, ...]) -> Any:
    from windtunnel.commands import page_stage, rank_analysis  # a rank that runs alone is analysed elsewhere

    jobs = {
        "analyse": rank_analysis.analyse_rank,
        "draw": rank_analysis.draw_pictures,
        "detail": page_stage.detail_rank,
    }
    return jobs[kind](*what) if kind in jobs else None


def _forget_random_state() -> None:
    """Two interpreters never begin with the same random numbers; two forks would."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def tell(control: socket.socket, kind: bytes, number: int, value: int) -> None:
    """One short message, written at once: a child and the nursery may tell at the same time."""
    with suppress(OSError):
        control.sendall(kind + SIZES.pack(number, value))
