"""Run a program plainly and under a threshold, and compare bit for bit.

    program ──> plain run ──> its peak ──> thresholds ──> the same program with a runtime ──> same bits?

A program is a function without arguments that returns tensors. The state of torch's generator afterwards counts as
one of its results.
"""

from __future__ import annotations

import gc
import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tests.remat.memory_events import watched
from windtunnel.remat.evict_and_recompute import Settings
from windtunnel.remat.pytorch.meter import meter_for
from windtunnel.remat.pytorch.runtime import Runtime
from windtunnel.remat.statistics import Statistics

CPU = torch.device("cpu")
METER = meter_for(CPU)
MINIMUM = 4096  # bytes: the tensors of these tests are small


class CostByBytes:
    """Costs that do not depend on how busy the machine is, so that decisions can be repeated."""

    def seconds(self, key: Any, measured: float, operator: Any, args: Any, out: Any) -> float:
        tensors = [each for each in tree_leaves((args, out)) if isinstance(each, torch.Tensor)]
        return 1e-6 + 1e-9 * sum(each.numel() * each.element_size() for each in tensors)


Program = Callable[[], Iterable[torch.Tensor]]


@contextmanager
def runtime(threshold: int | None, **settings: object) -> Iterator[Runtime]:
    """A runtime of its own, on inside the block; its warnings that the threshold is too low are expected."""
    live = Runtime(Settings(threshold=threshold, **{"minimum_size": MINIMUM, **settings}), CPU, CostByBytes())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "windtunnel.dtr: the threshold")
        live.start()
        try:
            yield live
        finally:
            live.stop()


def bits(tensors: Iterable[torch.Tensor]) -> list[str]:
    return [_digest(each) for each in tensors]


def run(program: Program) -> list[str]:
    torch.manual_seed(0)
    return bits([*program(), torch.default_generator.get_state()])


def live_bytes() -> int:
    """Bytes in use, garbage not counted."""
    gc.collect()
    return METER.live_bytes()


def check(program: Program, *, shares: tuple[float, ...] = (0.6, 0.3), evicts: bool = True) -> Statistics:
    """The program gives the same bits under thresholds of these shares of its peak; return the last statistics."""
    with watched() as usage:
        expected = run(program)
    for share in shares:
        with runtime(live_bytes() + int(share * usage.peak)) as live:
            found = run(program)
        assert found == expected, f"other bits at {share:.0%} of the peak"
        if evicts:
            assert live.engine.statistics.rematerialisations > 0
    return live.engine.statistics


def _digest(tensor: torch.Tensor) -> str:
    content = tensor.detach().resolve_conj().contiguous().cpu()
    if content.dtype is torch.bfloat16:
        content = content.view(torch.int16)
    return hashlib.sha1(content.numpy().tobytes()).hexdigest()
