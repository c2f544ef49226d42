"""Messages between simulated ranks: which values were posted, and which ranks are waiting.

    post, fetch, end ──> answers to send now: (rank, value or None)

A rank waits for one value at a time. The answer is None when the value can no longer come: its sender ended without
posting it, or is itself waiting, directly or through others, for the rank that asked.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO

from windtunnel.session.executor import Fetch, Post

__all__ = ["Answers", "Mailbox"]

Answers = list[tuple[int, bytes | None]]
_KEPT_IN_MEMORY = (
    1 << 16
)  # bytes of one value; larger ones go to a file, because they are kept for the whole run


class Mailbox:
    """Keeps values for the whole run: a rank that is simulated later may ask for a value posted early."""

    def __init__(self) -> None:
        self._posted: dict[str, bytes | tuple[int, int]] = {}  # or where in the file
        self._file: IO[bytes] | None = None
        self._ended: set[int] = set()
        self.waiting: dict[int, Fetch] = {}  # rank -> what it waits for

    def post(self, post: Post) -> Answers:
        self._posted[post.key] = self._put_away(post.payload)
        return self._answer([f.rank for f in self.waiting.values() if f.key == post.key], post.payload)

    def fetch(self, fetch: Fetch) -> Answers:
        if fetch.key in self._posted:
            return [(fetch.rank, self._look_up(fetch.key))]
        if fetch.sender in self._ended:
            return [(fetch.rank, None)]
        self.waiting[fetch.rank] = fetch
        return self._answer(self._cycle(fetch), None)

    def end(self, rank: int) -> Answers:
        """Note that the rank has ended and posts nothing more."""
        self._ended.add(rank)
        self.waiting.pop(rank, None)
        return self._answer([f.rank for f in self.waiting.values() if f.sender == rank], None)

    def restart(self, rank: int) -> None:
        """Note that the rank starts again: it will repeat its requests."""
        self.waiting.pop(rank, None)

    def close(self) -> None:
        """Delete the values."""
        if self._file is not None:
            self._file.close()

    def _put_away(self, payload: bytes) -> bytes | tuple[int, int]:
        if len(payload) <= _KEPT_IN_MEMORY:
            return payload
        try:
            self._file = self._file or tempfile.TemporaryFile(prefix="windtunnel-mail-", buffering=0)  # noqa: SIM115
            place = (self._file.seek(0, os.SEEK_END), len(payload))
            return place if self._file.write(payload) == len(payload) else payload
        except OSError:
            return payload  # the disk is full: keep it in memory

    def _look_up(self, key: str) -> bytes:
        found = self._posted[key]
        if isinstance(found, bytes):
            return found
        assert self._file is not None
        start, length = found
        self._file.seek(start)
        return self._file.read(length)

    def _answer(self, ranks: list[int], payload: bytes | None) -> Answers:
        for rank in ranks:
            del self.waiting[rank]
        return [(rank, payload) for rank in ranks]

    def _cycle(self, fetch: Fetch) -> list[int]:
        """Return the ranks that wait for each other in a cycle through this one; empty if there is no cycle."""
        around, sender = [fetch.rank], fetch.sender
        while sender != fetch.rank:
            if sender not in self.waiting:
                return []
            around.append(sender)
            sender = self.waiting[sender].sender
        return around
