"""The interface of what runs ranks, on this machine or elsewhere: tasks go in, events come out.

    RankTask ──> Executor.start ──> Step, Post, Fetch ... Ended, in one queue; output lines by callback

`local_executor` runs ranks as processes on this machine, `ray_executor` as tasks on a Ray cluster. `world` decides which
ranks run and answers their messages.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from windtunnel.capture.task import RankTask
from windtunnel.isolation.file_changes import Files

__all__ = [
    "Analysed", "Ended", "Events", "Executor", "Fetch", "Interrupted", "OnLine", "Post",
    "Remark", "Step",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """The script took its n-th optimizer step."""

    rank: int
    n_steps: int


@dataclass(frozen=True, slots=True)
class Post:
    """A rank sends a value to other ranks."""

    rank: int
    key: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Fetch:
    """A rank asks for a value and waits until `Executor.answer`."""

    rank: int
    key: str
    sender: int


@dataclass(frozen=True, slots=True)
class Remark:
    """A note for the report about how a rank was run; `is_retry`: the rank starts again."""

    rank: int
    text: str
    is_retry: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The rank's files are in its folder; a negative code is the signal that killed it."""

    rank: int
    code: int


@dataclass(frozen=True, slots=True)
class Analysed:
    """The analysis of a rank's recording is done."""

    rank: int
    finding: Any  # rank_analysis.Finding


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The run should stop: Ctrl-C, SIGTERM or SIGHUP."""


Events = SimpleQueue  # of the records above

# Output lines are not queued: the callback runs in the thread that reads them, so that a script which prints faster
# than the terminal is slowed down, as it would be without windtunnel.
OnLine = Callable[[int, str], None]


class Executor(Protocol):
    """Runs ranks and reports through events."""

    n_slots: int  # ranks it can run at the same time

    def start(self, task: RankTask) -> None:
        """Start a rank without blocking; it may have to wait for a free slot."""
        ...

    def answer(self, rank: int, payload: bytes | None) -> None:
        """Send a waiting rank the value it asked for; None: there will be none."""
        ...

    def stop(self, number: signal.Signals) -> None:
        """Stop every rank: gracefully (SIGINT) or by force (SIGKILL)."""
        ...

    def files(self) -> Files | None:
        """Return the files the scripts would have written; None if unknown."""
        ...

    def close(self) -> None:
        """Release processes and connections."""
        ...
