"""Mail between simulated ranks: who posted what, and who waits for whom.

    post, fetch, end ──> answers to give now: (rank, value or None)

A rank waits for one value at a time. It is answered None when the value cannot come any more: its sender ended
without posting it, or waits itself, directly or through others, for the rank that asks.
"""

from __future__ import annotations

from windtunnel.commands.executor import Fetch, Post

__all__ = ["Answers", "PostOffice"]

Answers = list[tuple[int, bytes | None]]


class PostOffice:
    """Values are kept for the whole run: a rank simulated later may ask for what was posted at the beginning."""

    def __init__(self) -> None:
        self._posted: dict[str, bytes] = {}
        self._ended: set[int] = set()
        self.waiting: dict[int, Fetch] = {}  # rank -> what it waits for

    def post(self, post: Post) -> Answers:
        self._posted[post.key] = post.payload
        return self._answer([f.rank for f in self.waiting.values() if f.key == post.key], post.payload)

    def fetch(self, fetch: Fetch) -> Answers:
        if fetch.key in self._posted:
            return [(fetch.rank, self._posted[fetch.key])]
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
