"""Handles of running collectives, and what a program may ask of the communication library below a group.

A handle keeps its tensors alive until the program waits, as NCCL's does: their memory cannot be reused before. What
another rank sends is fetched at that moment too: two ranks may both receive first and send later, if neither waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.events.model import Kind

__all__ = ["SimulatedBackend", "SimulatedWork"]


class SimulatedWork(dist._Work):
    """A collective that is already done; it releases its tensors when the program waits for it."""

    def __init__(self, id: int, held: Any, result: Any, is_async: bool = False) -> None:
        super().__init__()
        self.is_async = is_async  # the program continues, and may wait later
        self._id = id
        self._held = held
        self._result = result
        self._future: torch.futures.Future | None = None
        self._arrivals: list[Callable[[], None]] = []

    def expect(self, arrive: Callable[[], None]) -> None:
        """Something is received with this call: `arrive` is called once, when the program waits for it."""
        self._arrivals.append(arrive)

    def wait(self, timeout: Any = None) -> bool:
        self._receive()
        if self._held is not None:
            self._held = None
            recorder = store.world.recorder
            recorder.futures.pop(self._id, None)
            recorder.plain_row(Kind.WAIT, self._id, stream=recorder.stream)
        return True

    def _receive(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        for arrive in arrivals:
            arrive()

    def block_current_stream(self) -> None:
        self.wait()

    synchronize = block_current_stream

    def is_completed(self) -> bool:
        self._receive()
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> Any:
        return self._result

    def source_rank(self) -> int:
        return 0

    def get_future(self) -> torch.futures.Future:
        self._receive()
        if self._future is None:
            self._future = torch.futures.Future()
            self._future.set_result(self._result)
            if self._held is not None:  # DDP's reducer waits at the end of backward, in C++
                sims = (store.sim_of(t) for t in self._held if isinstance(t, torch.Tensor))
                storages = tuple(sim.id for sim in sims if sim is not None)
                store.world.recorder.futures[self._id] = storages
        return self._future


class SimulatedBackend:
    """What a program may ask of the communication library under a group."""

    supports_splitting = supports_coalescing = supports_time_estimate = supports_tensor_alloc = False
    supports_window = False

    def __init__(self, name: str) -> None:
        self._name = name
        self.options = self

    def name(self) -> str:
        return self._name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None  # timeouts, aborts, eager connects: nothing to do
