"""`torch.multiprocessing.spawn`: a script that starts its own ranks runs as one of them here.

spawn(train, nprocs=8) ──> train(local rank) in this process; windtunnel simulates the other ranks
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

from windtunnel.capture.recorder import Recorder

__all__ = ["install_spawn"]

_SENTENCE = "torch.multiprocessing.spawn: the simulated rank's function ran in the script's own process"


class _Finished:
    """What `join=False` returns: the function has already returned."""

    processes: tuple[Any, ...] = ()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        return True

    def pids(self) -> list[int]:
        return []


def install_spawn(recorder: Recorder) -> None:
    """Let the script's own launcher run this rank."""

    def start_processes(fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True,
                        *_: Any, **__: Any) -> _Finished | None:  # fmt: skip
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        if rank >= nprocs:
            raise RuntimeError(
                f"the script starts {nprocs} processes per machine, but local rank {rank} is simulated: pass"
                f" --nproc-per-node {nprocs}"
            )
        recorder.notice(_SENTENCE)
        fn(rank, *args)
        return None if join else _Finished()

    mp.spawn = mp.start_processes = start_processes
