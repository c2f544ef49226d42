"""What runs ranks, whichever machine they run on: tasks go in, events come out.

    RankTask ──> Executor.start ──> Step, Post, Fetch ... Ended, in one queue; lines as they come

`local_executor` runs ranks as processes of this machine, `ray_executor` as tasks of a Ray cluster. Neither decides
anything: which ranks run, and what a rank that asks for mail is answered, is decided in `world`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from windtunnel.capture.task import RankTask
from windtunnel.isolation.changes import Files

__all__ = [
    "INTERRUPTED", "Analysed", "Ended", "Events", "Executor", "Fetch", "Interrupted", "OnLine", "Post",
    "Remark", "Step",
]  # fmt: skip

INTERRUPTED = 130  # exit code of a rank that was told to stop


@dataclass(frozen=True, slots=True)
class Step:
    """The script took its n-th optimizer step."""

    rank: int
    n_steps: int


@dataclass(frozen=True, slots=True)
class Post:
    """A rank leaves a value for others."""

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
    """Something a reader of the report must know about how a rank was run; it begins again if it `is_retry`."""

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
    """What a rank's recording says."""

    rank: int
    finding: Any  # rank_analysis.Finding


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The user, or whoever started us, wants an end."""


Events = SimpleQueue  # of the records above

# Lines a script prints do not queue up: whoever shows them is called from the thread that reads them, so that a
# script which prints faster than a terminal takes it is slowed down, as it would be without us.
OnLine = Callable[[int, str], None]


class Executor(Protocol):
    """Runs ranks; everything it has to say comes as events."""

    n_slots: int  # ranks it can run at the same time

    def start(self, task: RankTask) -> None:
        """Run a rank; at once if there is room, and never to be waited for."""
        ...

    def answer(self, rank: int, payload: bytes | None) -> None:
        """Give a waiting rank what it asked for."""
        ...

    def stop(self, number: signal.Signals) -> None:
        """End every rank: politely (SIGINT) or not (SIGKILL)."""
        ...

    def files(self) -> Files | None:
        """What the scripts would have written; None where nobody can tell."""
        ...

    def close(self) -> None:
        """Let go of processes and connections."""
        ...
