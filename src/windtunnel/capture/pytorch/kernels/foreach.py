"""Optimizers group parameters by device. Inside torch all simulated devices are one, so the groups are split here.

_group_tensors_by_device_and_dtype ──> {(cuda:0, bf16): …, (cuda:1, bf16): …}
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.tensors.storage import sim_of, world

__all__ = ["install_foreach"]


def install_foreach() -> None:
    """Make torch's grouping see the devices the program sees."""
    original: Any = torch._C._group_tensors_by_device_and_dtype

    def group(lists: Any, with_indices: bool = False) -> Any:
        found: dict[Any, Any] = {}
        for (device, dtype), (members, indices) in original(lists, with_indices).items():
            if device.type != store.SIM.type:
                found[(device, dtype)] = (members, indices)
                continue
            for own, positions in _positions_by_device(members[0]).items():
                found[(own, dtype)] = (
                    [[each[i] for i in positions] if each else each for each in members],
                    [indices[i] for i in positions] if indices else indices,
                )
        return found

    torch._C._group_tensors_by_device_and_dtype = group  # type: ignore[assignment]


def _positions_by_device(tensors: list[torch.Tensor]) -> dict[torch.device, list[int]]:
    found: dict[torch.device, list[int]] = {}
    for i, tensor in enumerate(tensors):
        sim = sim_of(tensor)
        found.setdefault(sim.device if sim is not None else world.default_device, []).append(i)
    return found
