"""Values that travel between simulated ranks: the few a program really reads, such as pickled objects and shapes.

    rank 0: send_object_list ──> Mail.post(key) ──> whoever runs the ranks ──> Mail.fetch(key) ──> rank 1 reads it

Bulk data has no values on a simulated device and is never sent. A rank that asks for a value waits until the rank
that sends it has been run that far; it is started for that if need be.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["LocalMail", "Mail"]


class Mail(Protocol):
    """How a rank reaches its peers. Keys are unique in a run: the n-th message from one rank to another."""

    is_alone: bool  # no peer is ever run: what they would send stays unknown

    def post(self, key: str, payload: bytes) -> None:
        """Leave a value for other ranks."""
        ...

    def fetch(self, key: str, sender: int) -> bytes | None:
        """The value `sender` posts under this key; waits for it. None: the sender ended without posting it."""
        ...


class LocalMail:
    """For a rank that is simulated alone: it finds only what it posted itself."""

    is_alone = True

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def post(self, key: str, payload: bytes) -> None:
        self._values[key] = payload

    def fetch(self, key: str, sender: int) -> bytes | None:
        return self._values.get(key)
