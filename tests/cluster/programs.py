"""Programs written by hand: lists of steps, one list per rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from windtunnel.cluster.program import StepProgram, Work

__all__ = [
    "host", "kernel", "program", "receive", "record_event", "reduce_all", "send", "step", "sync", "wait", "wait_event",
]  # fmt: skip

Step = tuple[Work, dict[str, Any]]


def kernel(seconds: float, stream: int = 0, host: float = 0.0) -> Step:
    return Work.KERNEL, {"seconds": seconds, "stream": stream, "host_seconds": host}


def host(seconds: float) -> Step:
    return Work.HOST, {"host_seconds": seconds}


def send(peer: int, group: int = 0, seconds: float = 0.0, is_async: bool = True, id: int = -1) -> Step:
    fields = {"peer": peer, "group": group, "seconds": seconds, "is_async": is_async, "subject": id}
    return Work.SEND, fields


def receive(peer: int, group: int = 0, seconds: float = 0.0, is_async: bool = False, id: int = -1) -> Step:
    fields = {"peer": peer, "group": group, "seconds": seconds, "is_async": is_async, "subject": id}
    return Work.RECEIVE, fields


def reduce_all(
    seconds: float, group: int = 0, is_async: bool = False, id: int = 0, stream: int = 0, host: float = 0.0
) -> Step:
    return Work.COLLECTIVE, {
        "seconds": seconds, "group": group, "is_async": is_async, "subject": id, "stream": stream, "host_seconds": host,
    }  # fmt: skip


def wait(id: int, stream: int = 0) -> Step:
    """Of a stream for a call."""
    return Work.WAIT, {"subject": id, "stream": stream}


def sync(stream: int = -1) -> Step:
    return Work.SYNC, {"stream": stream}


def record_event(id: int, stream: int = 0) -> Step:
    return Work.RECORD_EVENT, {"subject": id, "stream": stream}


def wait_event(id: int, stream: int = 0) -> Step:
    return Work.WAIT_EVENT, {"subject": id, "stream": stream}


def step(number: int = 1) -> Step:
    return Work.STEP, {"subject": number}


def program(
    rank: int,
    steps: Sequence[Step],
    groups: Sequence[Sequence[int]] = (),
    *,
    is_synchronous: bool = False,
) -> StepProgram:
    """A program of these steps; calls are numbered in the order they stand."""
    n = len(steps)
    columns: dict[str, Any] = {
        "stream": np.zeros(n, np.int32), "subject": np.arange(n) + 1000, "seconds": np.zeros(n),
        "host_seconds": np.zeros(n), "group": np.full(n, -1, np.int32), "peer": np.full(n, -1, np.int32),
        "sequence": np.zeros(n, np.int64), "is_async": np.zeros(n, bool),
    }  # fmt: skip
    counts: dict[Any, int] = {}
    for i, (work, fields) in enumerate(steps):
        for name, value in fields.items():
            columns[name][i] = value
        if work in (Work.COLLECTIVE, Work.SEND, Work.RECEIVE):
            key = (fields["group"], fields.get("peer"), work)
            counts[key] = counts.get(key, -1) + 1
            columns["sequence"][i] = counts[key]
    return StepProgram(
        rank=rank, row=np.arange(n), work=np.array([work for work, _ in steps], np.uint8), **columns,
        groups=tuple(map(tuple, groups)), group_names=("",) * len(groups), is_synchronous=is_synchronous,
    )  # fmt: skip
