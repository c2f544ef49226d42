"""The clock of MindSpore's memory tracker, read from Python.

    libwindtunnel_marks.so ──> tracker_clock ──> a function that gives the next tick
                         └──> dump_tracker ──> the tracker's files, now

Without it (another wheel, whose tracker has other symbols) modules, steps and names of tensors are not known, and the user
is told; memory is not touched by it.
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
    """The clock, and why it stands still if it does."""
    why = f"the memory tracker of MindSpore {mindspore.__version__} cannot be followed"
    effect = "modules, steps and names of tensors are not known"
    try:
        library = ctypes.CDLL(str(marks))
        state = library.windtunnel_mark(
            b"windtunnel", b"begin", b""
        )  # its first mark shows where the clock is
    except (OSError, AttributeError) as error:
        return lambda: 0, f"{why} ({error}): {effect}"
    if state != 0:
        return lambda: 0, f"{why} ({_STATES.get(state, state)}): {effect}"
    library.windtunnel_tick.restype = ctypes.c_int64
    return library.windtunnel_tick, None


def dump_tracker(marks: Path, rank: int) -> None:
    """Have the tracker write its files, which it does by itself only when Python ends in order. No operator may follow."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(str(marks)).windtunnel_dump(ctypes.c_size_t(rank))
