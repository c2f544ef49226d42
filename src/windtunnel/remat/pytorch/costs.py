"""The cost of recomputing an operator: measured on the CPU, estimated on an accelerator, or given.

    operator, shapes, seconds it took ──> the least seen so far for that operator and those shapes

An accelerator runs asynchronously, and synchronising with it would cost too much. There the cost is the larger of the
time to move the bytes and the time to do the arithmetic on a typical device. Only the proportions matter to a policy.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch

__all__ = ["Costs"]

_BYTES_PER_S = 1.5e12
_FLOPS_PER_S = 150e12
_LAUNCH_S = 5e-6


class Costs:
    def __init__(self, device: torch.device, given: Mapping[Hashable, float] | None = None) -> None:
        """`given`: seconds by cost key that are used as they are; what they lack is measured once and kept."""
        self.table: dict[Hashable, float] = dict(given or {})
        self._is_given = given is not None
        self._is_measured = device.type == "cpu"

    def seconds(self, key: Hashable, measured: float, operator: Any, args: Any, out: Any) -> float:
        known = self.table.get(key)
        if known is None:
            known = self.table[key] = measured if self._is_measured else _estimate(operator, args, out)
        elif self._is_measured and not self._is_given and measured < known:
            known = self.table[key] = measured
        return known


def _estimate(operator: Any, args: Any, out: Any) -> float:
    n_bytes = sum(_bytes(each) for each in (*args, out))
    # Late: without an accelerator, and so without triton, torch warns when this is imported.
    from torch.utils.flop_counter import flop_registry

    count = flop_registry.get(operator._overloadpacket)
    flops = count(*args, out_val=out) if count is not None else 0
    return _LAUNCH_S + max(n_bytes / _BYTES_PER_S, flops / _FLOPS_PER_S)


def _bytes(each: Any) -> int:
    if isinstance(each, torch.Tensor):
        return each.numel() * each.element_size()
    return sum(_bytes(one) for one in each) if isinstance(each, (list, tuple)) else 0
