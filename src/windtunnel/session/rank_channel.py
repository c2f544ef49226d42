"""The connection between a simulated rank and its executor: steps and messages over one socket.

    rank: RankChannel.step, post, fetch ──> messages ──> read_messages: the executor
                              fetch <── answer ────── answer

A message is a line of JSON followed by bytes. A rank whose connection is closed interrupts itself.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from windtunnel.session.executor import Fetch, Post, Step

__all__ = ["RankChannel", "answer", "read_messages"]


class RankChannel:
    """The rank's end of the connection; implements `RankMessages`."""

    is_alone = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._owner = os.getpid()  # workers that the script forks share the socket, but must not use it

    def step(self, n_steps: int) -> None:
        self._send({"kind": "step", "n": n_steps})

    def post(self, key: str, payload: bytes) -> None:
        self._send({"kind": "post", "key": key}, payload)

    def fetch(self, key: str, sender: int) -> bytes | None:
        if os.getpid() != self._owner:
            return None
        with self._lock:
            self._send_now({"kind": "fetch", "key": key, "sender": sender}, b"")
            try:
                head, payload = _unpack(self._connection.recv_bytes())
            except (EOFError, OSError):
                raise KeyboardInterrupt from None  # the executor is gone
        return payload if head["found"] else None

    def _send(self, head: dict[str, Any], payload: bytes = b"") -> None:
        if os.getpid() == self._owner:
            with self._lock:
                self._send_now(head, payload)

    def _send_now(self, head: dict[str, Any], payload: bytes) -> None:
        try:
            self._connection.send_bytes(_pack(head, payload))
        except OSError:
            signal.raise_signal(signal.SIGINT)  # the executor is gone: stop this rank


def read_messages(connection: Connection, rank: int) -> Iterator[Step | Post | Fetch]:
    """Yield the messages of a rank until it ends."""
    while True:
        try:
            head, payload = _unpack(connection.recv_bytes())
        except (EOFError, OSError):
            return
        if head["kind"] == "step":
            yield Step(rank, head["n"])
        elif head["kind"] == "post":
            yield Post(rank, head["key"], payload)
        else:
            yield Fetch(rank, head["key"], head["sender"])


def answer(connection: Connection, payload: bytes | None) -> None:
    """Send the rank the value it asked for; None: there will be none."""
    connection.send_bytes(_pack({"found": payload is not None}, payload or b""))


def _pack(head: dict[str, Any], payload: bytes) -> bytes:
    return json.dumps(head).encode() + b"\n" + payload


def _unpack(message: bytes) -> tuple[dict[str, Any], bytes]:
    head, _, payload = message.partition(b"\n")
    return json.loads(head), payload
