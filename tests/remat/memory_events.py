"""How much memory a program used, by torch's own profiler: a second opinion on the runtime's meter.

profiler's "[memory]" events ──> running total ──> Peak(start, most)
every operator's tensors ──> the largest operator
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.autograd import profiler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass
class Usage:
    """Bytes over those in use when the watch began."""

    peak: int = 0
    at_end: int = 0


@contextmanager
def watched() -> Iterator[Usage]:
    """Measure what runs inside; the result is complete afterwards."""
    usage = Usage()
    # What torch.profiler.profile(profile_memory=True) does, without making a tree of all operators afterwards.
    config = profiler.ProfilerConfig(
        profiler.ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig()
    )
    activities = {profiler.ProfilerActivity.CPU}
    profiler._prepare_profiler(config, activities)
    profiler._enable_profiler(config, activities)
    try:
        yield usage
    finally:
        events = [each for each in profiler._disable_profiler().events() if each.name() == "[memory]"]
    total = 0
    for each in sorted(events, key=lambda each: each.start_ns()):
        total += each.nbytes()
        usage.peak = max(usage.peak, total)
    usage.at_end = total


class _LargestOperator(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.n_bytes = 0
        self.name = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        storages = {
            each.untyped_storage()._cdata: each.untyped_storage().nbytes()
            for each in tree_leaves((args, kwargs, out))
            if isinstance(each, torch.Tensor) and each.layout is torch.strided
        }
        if (
            "_foreach" not in str(func)
            and "_fused" not in str(func)
            and sum(storages.values()) > self.n_bytes
        ):
            self.n_bytes, self.name = sum(storages.values()), str(func)
        return out


def largest_operator(run: Callable[[], Any]) -> tuple[int, str]:
    """Bytes of the inputs and outputs of the largest operator, forward and backward, and its name."""
    with _LargestOperator() as found:
        run()
    return found.n_bytes, found.name
