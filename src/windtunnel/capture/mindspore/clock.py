"""The clock of MindSpore's memory tracker, read from Python.

    libwindtunnel_marks.so ──> tracker_clock ──> a function that returns the next tick
                         ├──> dump_tracker ──> the tracker's files, now
                         └──> Snapshots ──> a copy of two of them every few seconds, for a program that is killed

Without it (another wheel, whose tracker has other symbols) modules, steps and tensor names are unknown, which is
reported; memory numbers do not depend on it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import mindspore

from windtunnel.capture.mindspore.tracker.program import SNAPSHOT

__all__ = ["Snapshots", "dump_tracker", "tracker_clock"]

_PAUSE_SECONDS = 0.5
_SHARE = 20  # a snapshot takes at most this part of the time: a large program has few of them
_FILES = ("memory_block.csv", "task.csv")

_STATES = {
    1: "no tracker is loaded",
    2: "it has no clock that can be read",
    3: "it is switched off",
}


def tracker_clock(marks: Path) -> tuple[Callable[[], int], str | None]:
    """The clock, and the reason if it does not work."""
    why = f"the memory tracker of MindSpore {mindspore.__version__} cannot be read"
    effect = "modules, steps and tensor names are unknown"
    try:
        library = ctypes.CDLL(str(marks))
        state = library.windtunnel_mark(b"windtunnel", b"begin", b"")  # its first mark finds the clock
    except (OSError, AttributeError) as error:
        return lambda: 0, f"{why} ({error}): {effect}"
    if state != 0:
        return lambda: 0, f"{why} ({_STATES.get(state, state)}): {effect}"
    library.windtunnel_tick.restype = ctypes.c_int64
    return library.windtunnel_tick, None


def dump_tracker(marks: Path, rank: int) -> None:
    """Make the tracker write its files, as it does when Python exits normally. No operator may run afterwards."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(str(marks)).windtunnel_dump(ctypes.c_size_t(rank))


class Snapshots:
    """MindSpore writes its tracker's files only when it exits. A killed program leaves the last snapshot of them."""

    def __init__(self, marks: Path, rank: int, folder: Path, flush: Callable[[], None]) -> None:
        self._library, self._rank, self._folder, self._flush = ctypes.CDLL(str(marks)), rank, folder, flush
        self._is_over = threading.Event()
        self._lock = threading.Lock()  # held while the tracker's own lock is
        self._thread = threading.Thread(target=self._run, name="windtunnel snapshots", daemon=True)

    def start(self) -> None:
        # A dataset forks its workers: one that inherits the tracker's lock while it is held would wait forever.
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._lock.release
        )
        self._thread.start()

    def stop(self) -> None:
        """No snapshot is taken after this: the tracker is about to be destroyed."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause = _PAUSE_SECONDS
        while not self._is_over.wait(pause):
            started = time.thread_time()  # not wall time: on a busy machine that would make them rare
            with suppress(OSError):  # a full disk: the next one may succeed
                if not self._take():
                    return
            pause = max(_PAUSE_SECONDS, _SHARE * (time.thread_time() - started))

    def _take(self) -> bool:
        self._flush()  # marks first: they are about what comes before the snapshot
        with self._lock:
            if self._library.windtunnel_snapshot(ctypes.c_ulong(self._rank)) != 0:
                return False
        kept = self._folder / SNAPSHOT
        kept.mkdir(exist_ok=True)
        for name in _FILES:
            for path in self._folder.rglob(name):
                if path.parent != kept:
                    path.replace(kept / name)
        return True
