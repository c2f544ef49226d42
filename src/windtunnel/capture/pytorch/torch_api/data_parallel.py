"""`nn.DataParallel`: copies between the devices of one process, which torch has in C++ in CUDA builds only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from windtunnel.capture.pytorch.tensors.storage import CPU, world

__all__ = ["install_data_parallel"]

Tensor = torch.Tensor


def install_data_parallel() -> None:
    """Install the functions that torch calls by these names."""
    for function in (_scatter, _gather, _broadcast, _broadcast_coalesced):
        setattr(torch._C, function.__name__, function)


def _scatter(
    tensor: Tensor, devices: Sequence[int], chunk_sizes: Any, dim: int, streams: Any
) -> list[Tensor]:
    parts = (
        tensor.split(list(chunk_sizes), dim) if chunk_sizes is not None else tensor.chunk(len(devices), dim)
    )
    return [part.to(_device(i)) for part, i in zip(parts, devices, strict=False)]


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    return torch.cat([t.to(_device(destination)) for t in tensors], dim)


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [tensor.to(_device(i)) for i in devices]


def _broadcast_coalesced(
    tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[Tensor]]:
    return [[t.to(_device(i)) for t in tensors] for i in devices]


def _device(index: int | None) -> torch.device:
    if index == -1:
        return CPU
    return world.default_device if index is None else torch.device(world.device_type, index)
