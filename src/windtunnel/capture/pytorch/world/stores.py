"""Key-value stores of a simulated job: a rank reads what it set itself and what rank 0 set.

store.set(k, v) ──> a dictionary, and a message to the other ranks;   store.get(k) ──> that, or what rank 0 posted
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from windtunnel.capture.rank_messages import RankMessages

__all__ = ["SimulatedStore"]


class SimulatedStore(dist.Store):
    """Replaces TCPStore and FileStore; counters count every rank, as if all of them had reached this point."""

    messages: RankMessages
    rank = 0
    world_size = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self.host, self.port, self.path = "127.0.0.1", 0, ""

    def set(self, key: str, value: Any) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)
        if self.rank == 0:
            self.messages.post(f"store:{key}", self._values[key])

    def get(self, key: str) -> bytes:
        if key not in self._values:
            found = self.messages.fetch(f"store:{key}", 0) if self.rank else None
            if found is None:
                raise dist.DistStoreError(
                    f"rank {self.rank} waits for the key {key!r}, which neither it nor rank 0 sets"
                )
            self._values[key] = found
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        count = int(self._values.get(key, b"0")) + amount * self.world_size
        self._values[key] = str(count).encode()
        return count

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        known = self._values.get(key)
        if known is None or known.decode(errors="replace") == expected:
            self.set(key, desired)
        return self._values[key]

    def append(self, key: str, value: Any) -> None:
        self.set(
            key, self._values.get(key, b"") + (value.encode() if isinstance(value, str) else bytes(value))
        )

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        """Peers are assumed to have reached this point: what they set is available."""

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Like `wait`."""

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._values)

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: Any) -> None:
        """Nothing here takes time."""

    def clone(self) -> SimulatedStore:
        return self
