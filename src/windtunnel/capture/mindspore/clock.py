"""The clock of MindSpore's memory tracker, read from Python.

    libwindtunnel_marks.so ──> tracker_clock ──> a function that returns the next tick
                         └──> dump_tracker ──> the tracker's files, now

Without it (another wheel, whose tracker has other symbols) modules, steps and tensor names are unknown, which is
reported; memory numbers do not depend on it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import mindspore

__all__ = ["dump_tracker", "tracker_clock"]

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
