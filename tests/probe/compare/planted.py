"""A small transformer and a small CNN in which errors can be planted, trained under the probe.

    dump(folder, plant=..., kernel=..., prepare=...) ──> a dump

A plant is a function that gets (place, value) wherever the models offer a value and returns what is used instead. A
WrongKernel changes what one call of one operator returns, below everything that a probe of APIs or modules can see.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.pytorch import PrecisionDebugger

__all__ = ["Block", "Convolutions", "Transformer", "WrongKernel", "dump", "honest"]

Plant = Callable[[str, torch.Tensor], torch.Tensor]
VOCABULARY, WIDTH, LENGTH, BATCH, HEADS = 50, 32, 12, 4, 4


def honest(place: str, value: torch.Tensor) -> torch.Tensor:
    return value


class WrongKernel(TorchDispatchMode):
    """Changes the result of call number `call` of an operator such as "aten.gelu.default"."""

    def __init__(self, operator: str, call: int, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.operator, self.call, self.change = operator, call, change

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if str(function) == self.operator:
            self.call -= 1
            if self.call == -1:
                is_many = isinstance(result, tuple)
                changed = self.change(result[0] if is_many else result)
                return (changed, *result[1:]) if is_many else changed
        return result


class Block(nn.Module):
    def __init__(self, name: str, plant: Plant) -> None:
        super().__init__()
        self.name, self.plant, self.has_residual = name, plant, True
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.act, self.drop = nn.GELU(), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (t.view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(self.plant(f"{self.name}.mask", mask), -1e9)
        mixed = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)
        mixed = self.drop(self.proj(mixed))
        x = x + mixed if self.has_residual else mixed
        h = self.plant(f"{self.name}.act", self.act(self.fc1(self.norm2(x))))
        return x + self.fc2(h)


class Transformer(nn.Module):
    def __init__(self, plant: Plant, n_blocks: int = 3) -> None:
        super().__init__()
        self.plant = plant
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH + 1, WIDTH)
        self.blocks = nn.ModuleList([Block(f"blocks.{i}", plant) for i in range(n_blocks)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = self.plant("positions", torch.arange(LENGTH))
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        x = self.embed(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


class Convolutions(nn.Module):
    def __init__(self, plant: Plant) -> None:
        super().__init__()
        self.plant = plant
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = self.plant("pooled", x)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(self.plant("features", x.flatten(1)))


def dump(
    folder: Path,
    plant: Plant = honest,
    *,
    kernel: WrongKernel | None = None,
    kind: str = "transformer",
    level: str = "L1",
    task: str = "statistics",
    summary: str = "statistics",
    steps: int = 1,
    lr: float = 0.1,
    seed: int = 0,
    prepare: Callable[[nn.Module], None] = lambda model: None,
    scale: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss,
    after_backward: Callable[[nn.Module], None] = lambda model: None,
    between_steps: Callable[[nn.Module], None] = lambda model: None,
) -> Path:
    """Train a model for some steps and return the folder of its dump."""
    config = folder.with_suffix(".json")
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text(
        f'{{"task": "{task}", "level": "{level}", "dump_path": "{folder}", '
        f'"{task}": {{"summary_mode": "{summary}"}}}}'
    )
    torch.manual_seed(0)
    model = Transformer(plant) if kind == "transformer" else Convolutions(plant)
    prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    debugger = PrecisionDebugger(config_path=str(config))
    for _ in range(steps):
        if kind == "transformer":
            inputs, targets = (
                torch.randint(VOCABULARY, (BATCH, LENGTH)),
                torch.randint(VOCABULARY, (BATCH * LENGTH,)),
            )
        else:
            inputs, targets = torch.randn(4, 3, 16, 16), torch.randint(10, (4,))
        torch.manual_seed(seed + 1)  # of dropout
        debugger.start(model)
        with kernel or nullcontext():
            logits = model(inputs)
            loss = scale(F.cross_entropy(logits.flatten(0, -2), targets))
            loss.backward()
        after_backward(model)
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
        between_steps(model)
        torch.manual_seed(2)
    debugger.close()
    return folder
