"""Mail between simulated ranks: who posted what, and who waits for whom.

    post, fetch, end ──> answers to give now: (rank, value or None)

A rank waits for one value at a time. It is answered None when the value cannot come any more: its sender ended
without posting it, or waits itself, directly or through others, for the rank that asks.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO

from windtunnel.commands.executor import Fetch, Post

__all__ = ["Answers", "PostOffice"]

Answers = list[tuple[int, bytes | None]]
_KEPT_AT_HAND = (
    1 << 16
)  # bytes of one value; larger ones wait in a file, since nobody says when the last asker has come


class PostOffice:
    """Values are kept for the whole run: a rank simulated later may ask for what was posted at the beginning."""

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
        """The rank posts nothing more."""
        self._ended.add(rank)
        self.waiting.pop(rank, None)
        return self._answer([f.rank for f in self.waiting.values() if f.sender == rank], None)

    def restart(self, rank: int) -> None:
        """The rank begins again: what it waited for will be asked once more."""
        self.waiting.pop(rank, None)

    def close(self) -> None:
        """Nobody asks any more."""
        if self._file is not None:
            self._file.close()

    def _put_away(self, payload: bytes) -> bytes | tuple[int, int]:
        if len(payload) <= _KEPT_AT_HAND:
            return payload
        try:
            self._file = self._file or tempfile.TemporaryFile(prefix="windtunnel-mail-", buffering=0)  # noqa: SIM115
            place = (self._file.seek(0, os.SEEK_END), len(payload))
            return place if self._file.write(payload) == len(payload) else payload
        except OSError:
            return payload  # the disk is full: memory may not be

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
        """The ranks that wait for each other around this one; empty if somebody can still go on."""
        around, sender = [fetch.rank], fetch.sender
        while sender != fetch.rank:
            if sender not in self.waiting:
                return []
            around.append(sender)
            sender = self.waiting[sender].sender
        return around
