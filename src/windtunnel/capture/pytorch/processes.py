"""Let the program's child processes, such as data-loading workers and pools, work on real tensors.

fork ──> in the child: large host tensors are real again, nothing is recorded
a batch of simulated tensors in a worker ──> stacked without shared memory, sent as a description
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils.data._utils import collate

from windtunnel.capture.pytorch.tensors.storage import World, sim_of

__all__ = ["install_processes"]


def install_processes() -> None:
    """Make forked children behave like workers without a simulated device."""
    os.register_at_fork(after_in_child=_become_worker)
    stack = collate.default_collate_fn_map[torch.Tensor]

    def collate_tensors(batch: Any, **kwargs: Any) -> torch.Tensor:
        if any(sim_of(t) is not None for t in batch):
            return torch.stack(list(batch), 0)
        return stack(batch, **kwargs)

    collate.default_collate_fn_map[torch.Tensor] = collate_tensors


def _become_worker() -> None:
    World.is_worker = True
