"""The PyTorch twin: a small transformer trained for a step or two under the probe.

python -m tests.probe.twins.torch_twin DIR [--plant gelu] ──> a dump
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from tests.probe.twins.weights import (
    EPS,
    HEADS,
    LENGTH,
    N_BLOCKS,
    VOCABULARY,
    WIDTH,
    arguments,
    batch,
    weights,
    write_config,
)

__all__ = ["Twin", "dump"]


class Block(nn.Module):
    def __init__(self, plant: str) -> None:
        super().__init__()
        self.has_residual = plant != "residual"
        self.norm1 = nn.LayerNorm(WIDTH, eps=1e-3 if plant == "eps" else EPS)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH, eps=EPS)
        gelu = nn.GELU(approximate="tanh" if plant == "gelu" else "none")
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), gelu, nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        n, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (t.view(n, length, HEADS, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        scores = scores.masked_fill(mask, -1e9)
        mixed = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(n, length, WIDTH)
        mixed = self.proj(mixed)
        x = x + mixed if self.has_residual else mixed
        return x + self.mlp(self.norm2(x))


class Twin(nn.Module):
    def __init__(self, plant: str = "") -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(plant if i == 1 else "") for i in range(N_BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH, eps=EPS), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        x = self.embed(tokens) + self.position(torch.arange(LENGTH))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def dump(
    out: Path,
    plant: str = "",
    level: str = "mix",
    task: str = "statistics",
    steps: int = 1,
    probe: str = "windtunnel",
) -> Path:
    """Train for some steps and return the folder of the dump."""
    if probe == "windtunnel":
        from windtunnel.pytorch import PrecisionDebugger
    else:
        from msprobe.pytorch import PrecisionDebugger
    model = Twin(plant)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = torch.from_numpy(weights()[name])
            is_turned = plant == "transposed" and name == "blocks.1.proj.weight"
            parameter.copy_(value.T if is_turned else value)
    tokens, targets = map(torch.from_numpy, batch())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger = PrecisionDebugger(config_path=write_config(out, level, task))
    for _ in range(steps):
        debugger.start(model)
        loss = F.cross_entropy(model(tokens).view(-1, VOCABULARY), targets.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    if probe == "windtunnel":
        debugger.close()
    return out


if __name__ == "__main__":
    given = arguments("windtunnel")
    dump(given.out, given.plant, given.level, given.task, given.steps, given.probe)
