"""Values sent between simulated ranks: the few that a program really reads, such as pickled objects and shapes.

    rank 0: send_object_list ──> RankMessages.post(key) ──> windtunnel.session ──> RankMessages.fetch(key) ──> rank 1

Bulk data has no values on a simulated device and is never sent. A rank that fetches a value waits until the sender has
run that far; the sender is started if necessary.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["LocalMessages", "RankMessages"]


class RankMessages(Protocol):
    """How a rank reaches its peers. Keys are unique in a run: the n-th message from one rank to another."""

    is_alone: bool  # no peer is simulated: what peers would send stays unknown

    def post(self, key: str, payload: bytes) -> None:
        """Send a value to other ranks."""
        ...

    def fetch(self, key: str, sender: int) -> bytes | None:
        """Wait for the value that `sender` posts under this key. None: the sender ended without posting it."""
        ...


class LocalMessages:
    """For a rank that is simulated alone: it receives only what it posted itself."""

    is_alone = True

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def post(self, key: str, payload: bytes) -> None:
        self._values[key] = payload

    def fetch(self, key: str, sender: int) -> bytes | None:
        return self._values.get(key)
