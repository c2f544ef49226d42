"""Files that one rank writes and another reads in the same run: the reader finds what was written before it.

    barrier(group) ──> each rank posts that it got there
    a file that is not there, or is new ──> wait until the writers reached the last barrier that this rank has passed

Every collective returns at once, so a rank may be past a barrier that a rank which saves a checkpoint has not reached.
On a cluster the barrier orders them; here the order matters only where a rank looks for a file, and is made there.
"""

from __future__ import annotations

import builtins
import io
import os
import sysconfig
from collections.abc import Callable
from typing import Any

from windtunnel.capture.rank_messages import RankMessages

__all__ = ["SharedFiles"]

_FEW_RANKS = 16  # in a larger world only rank 0 and the first rank of the own node are waited for
_LOOKUPS = ("stat", "listdir", "scandir")
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "/proc", "/sys", "/dev")


class SharedFiles:
    """The order between this rank's lookups and the other ranks' writes."""

    def __init__(
        self, rank: int, world_size: int, local_rank: int, messages: RankMessages, began: float
    ) -> None:
        self._rank, self._messages = rank, messages
        everyone = range(world_size) if world_size <= _FEW_RANKS else (0, rank - local_rank)
        self._writers = [each for each in dict.fromkeys((0, rank - local_rank, *everyone)) if each != rank]
        self._met: dict[str, int] = {}  # group -> how many of its barriers this rank has passed
        self._due: dict[
            str, tuple[int, frozenset[int]]
        ] = {}  # barriers after which nobody has been waited for
        self._is_waiting = False
        self._began = began

    def meet(self, group: str, ranks: Any) -> None:
        """This rank is at a barrier of the group."""
        n = self._met[group] = self._met.get(group, 0) + 1
        self._messages.post(self._key(group, n, self._rank), b"")
        self._due[group] = (n, frozenset(ranks))

    def install(self) -> None:
        """Let the functions of `os` and `io` that look for a file wait for those that write it."""
        opened = self._opening(builtins.open)
        builtins.open = io.open = opened
        for name in _LOOKUPS:
            setattr(os, name, self._looking(getattr(os, name)))

    def _looking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            if not self._due or self._is_waiting:
                return original(path, *args, **kwargs)
            if original.__name__ in ("listdir", "scandir"):
                self._wait_for_writers(path)  # a list is never missing, but may be too short
            try:
                return original(path, *args, **kwargs)
            except FileNotFoundError:
                if not self._wait_for_writers(path):
                    raise
            return original(path, *args, **kwargs)

        look.__name__ = original.__name__
        for able in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
            if original in able:
                able.add(look)
        return look

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            is_due = self._due and not self._is_waiting and "r" in mode and not isinstance(file, int)
            if is_due and self._is_new_or_missing(file):  # another rank may be writing it at this moment
                self._wait_for_writers(file)
            return original(file, mode, *args, **kwargs)

        return open

    def _is_new_or_missing(self, path: Any) -> bool:
        try:
            return _stat(path).st_mtime >= self._began
        except (OSError, ValueError):
            return True

    def _wait_for_writers(self, path: Any) -> bool:
        """Whether any rank had to be waited for: then the path may be there now."""
        if isinstance(path, int) or os.fsdecode(path).startswith(_LIBRARIES):
            return False
        due, self._due = self._due, {}
        has_waited = False
        self._is_waiting = True
        try:
            for group, (n, ranks) in due.items():
                for writer in self._writers:
                    if writer in ranks:
                        has_waited = True
                        self._messages.fetch(self._key(group, n, writer), writer)  # None: it ended; so be it
        finally:
            self._is_waiting = False
        return has_waited

    def _key(self, group: str, n: int, rank: int) -> str:
        return f"met:{group}:{n}:{rank}"


_stat = os.stat  # the system's own
