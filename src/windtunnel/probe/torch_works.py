"""Asynchronous calls of torch.distributed: each is written when all its works have been waited for.

    add(works, call) ──> Work.wait() by the program ──> the last one ──> call.write(True)
                     └─> nobody waits ──> stop: done? ──> call.write(True)      step: not done ──> call.write(False)

`Work.wait` is watched only while there is something to wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch.distributed as dist

__all__ = ["WorkWatch"]


class _Call(Protocol):
    def write(self, has_arrived: bool) -> None: ...


class WorkWatch:
    """The calls that are under way."""

    def __init__(self, safely: Callable[[Callable[[], Any]], Any]) -> None:
        self._safely = safely
        self._lock = threading.RLock()
        self._pending: list[tuple[list[Any], _Call]] = []  # works not waited for yet, call
        self._original: Any = None

    def add(self, works: list[Any], call: _Call) -> None:
        with self._lock:
            self._pending.append((list(works), call))
            self._watch()

    def waited(self, work: Any) -> None:
        """Somebody has waited for this work."""
        with self._lock:
            for entry in self._pending:
                open_works, call = entry
                found = [index for index, other in enumerate(open_works) if other is work]
                if found:
                    del open_works[found[0]]
                    if not open_works:
                        self._pending.remove(entry)
                        self._safely(lambda call=call: call.write(True))
                    break
            self._unwatch_if_idle()

    def finish_completed(self) -> None:
        """Write the calls whose works are done, though nobody has waited for them."""
        with self._lock:
            for entry in list(self._pending):
                if all(_is_done(work) for work in entry[0]):
                    self._pending.remove(entry)
                    self._safely(lambda entry=entry: entry[1].write(True))
            self._unwatch_if_idle()

    def finish_all(self) -> None:
        self.finish_completed()
        with self._lock:
            pending, self._pending = self._pending, []
            for _, call in pending:
                self._safely(lambda call=call: call.write(False))
            self._unwatch_if_idle()

    def _watch(self) -> None:
        if self._original is not None:
            return
        original = self._original = vars(dist.Work)["wait"]
        waits = self

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            waits.waited(work)
            return result

        dist.Work.wait = wait  # type: ignore[method-assign]

    def _unwatch_if_idle(self) -> None:
        if not self._pending and self._original is not None:
            dist.Work.wait, self._original = self._original, None  # type: ignore[method-assign]


def _is_done(work: Any) -> bool:
    try:
        return bool(work.is_completed())
    except (AttributeError, RuntimeError):
        return False
