"""Task overflow_check: the first calls that make a NaN or an infinity out of finite inputs, with all they had.

    inputs, outputs ──> meter ──> non-finite output, finite inputs? ──> the entry is written, its tensors saved

A call that was given a non-finite value only hands it on (a mask of -inf, everything after the first NaN), so it is
not the one to look at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from windtunnel.probe.collector import Collector
from windtunnel.probe.notice import tell
from windtunnel.probe.torch_elements import Elements, tensors_in

__all__ = ["OverflowWatch"]


class OverflowWatch:
    """Counts the finds of one debugger; after `overflow_nums` of them it is satisfied and looks no more."""

    def __init__(self, collector: Collector, elements: Elements) -> None:
        self.collector = collector
        self.elements = elements
        self.n_found = 0

    @property
    def is_satisfied(self) -> bool:
        most = self.collector.config.overflow_nums
        return 0 <= most <= self.n_found

    def inputs(self, name: str, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The inputs to keep until the outputs are known; a call in place gets copies kept instead."""
        api = name.split(".")[-3] if name.count(".") >= 3 else ""
        is_in_place = (api.endswith("_") and not api.endswith("__")) or api.startswith("__i")
        if not is_in_place and "inplace" not in kwargs:
            return args, kwargs
        return _copied(args), _copied(kwargs)

    def found(self, name: str, inputs: Any, outputs: Any) -> bool:
        """Whether this call is one to write down; tells the user where it is."""
        if self.is_satisfied:
            return False
        defects = [(n_nan, n_inf) for n_nan, n_inf in map(self._count, tensors_in(outputs)) if n_nan or n_inf]
        if not defects or any(map(_is_defect, _numbers_in(inputs))):
            return False
        if any(any(self._count(tensor)) for tensor in tensors_in(inputs)):
            return False
        self.n_found += 1
        n_nan, n_inf = (sum(pair[index] for pair in defects) for index in (0, 1))
        step = self.collector.step
        where = step.folder.path if step is not None else self.collector.config.dump_path
        tell(
            f"{name} made {n_nan} NaN and {n_inf} infinite values out of finite inputs; "
            f"its inputs and outputs are saved in {where}"
        )
        return True

    def _count(self, tensor: torch.Tensor) -> tuple[int, int]:
        measured = self.elements.meter.measure(tensor)
        if measured.stats is None:
            self.elements.meter.settle()
        stats = measured.stats
        return stats.nan_count or 0, stats.inf_count or 0


def _numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _numbers_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _numbers_in(item)


def _is_defect(number: float) -> bool:
    return not math.isfinite(number)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(_copied, value))
    if isinstance(value, list):
        return [*map(_copied, value)]
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value
