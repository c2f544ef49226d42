"""Small data, models and a training loop for the hard cases."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["ROWS", "WIDTH", "linear_layers", "rows_of", "tanh_layers", "train_briefly"]

ROWS, WIDTH = 64, 128  # 32 KiB a tensor


def rows_of(seed: int = 1) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))


def tanh_layers(depth: int = 6) -> nn.Sequential:
    return nn.Sequential(*[each for _ in range(depth) for each in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])


def linear_layers(depth: int = 5) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(depth)])


def train_briefly(model: nn.Module, forward=None, steps: int = 2, optimizer=None):
    """Losses, gradients and weights after a few steps."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for step in range(steps):
        x = rows_of(step)
        loss = (forward(model, x) if forward else model(x)).square().mean()
        loss.backward()
        found.append(loss.detach())
        if step == steps - 1:
            found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    return [*found, *model.state_dict().values()]
