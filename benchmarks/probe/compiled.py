"""How much collecting changes the results of compiled code, and what it costs: level by level, on three models.

    python -m benchmarks.probe.compiled

Each model is compiled by inductor and runs one forward and backward without the probe and then with it. Printed are
the largest difference of loss and gradients, relative to the largest value of the same tensor, how many entries were
collected inside graphs, the seconds of the first collected step (which compiles, at L0) and of a later one.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from windtunnel.pytorch import PrecisionDebugger

LEVELS = ("L0", "L1", "mix", "L2")
N_STEPS = 4


class Block(nn.Module):
    """An ordinary transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


def models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Model and input by name."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(64, 256), nn.ReLU(inplace=True), nn.LayerNorm(256), nn.Linear(256, 10))
    cnn = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 32, 3, stride=2)),
        *(nn.BatchNorm2d(32), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )
    transformer = nn.Sequential(nn.Embedding(100, 64), Block(64, 4), Block(64, 4), nn.Linear(64, 100))
    return {
        "MLP": (mlp, torch.randn(32, 64)),
        "CNN": (cnn, torch.randn(8, 3, 16, 16)),
        "transformer": (transformer, torch.randint(100, (4, 32))),
    }


def results(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Loss and gradients of one step from the same initial state."""
    model.zero_grad()
    loss = model(x).float().square().mean()
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def distance(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    return max(
        float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
        for a, b in zip(found, wanted, strict=True)
    )


def n_in_graphs(folder: Path) -> int:
    return sum(len(json.loads(path.read_text())["data"]) for path in folder.glob("graph/step0/*/dump.json"))


def main() -> None:
    torch.set_num_threads(1)  # with two, gradients of an embedding differ between runs even without the probe
    print(f"{'model':<12} {'level':<5} {'difference':>10} {'in graphs':>9} {'first step':>10} {'later':>8}")
    for name, (model, x) in models().items():
        compiled = torch.compile(model)
        wanted = results(compiled, x)
        wanted = results(compiled, x)  # a first step may still compile
        for level in LEVELS:
            with tempfile.TemporaryDirectory() as folder:
                debugger = PrecisionDebugger(
                    task="statistics", dump_path=folder, level=level, step=list(range(N_STEPS))
                )
                seconds, worst = [], 0.0
                for _ in range(N_STEPS):
                    begin = time.perf_counter()
                    debugger.start(compiled)
                    found = results(compiled, x)
                    debugger.stop()
                    debugger.step()
                    seconds.append(time.perf_counter() - begin)
                    worst = max(worst, distance(found, wanted))
                debugger.close()
                after = distance(results(compiled, x), wanted)
                note = "" if after == 0 else f"  after stop: {after:.1e}"
                print(
                    f"{name:<12} {level:<5} {worst:>10.1e} {n_in_graphs(Path(folder)):>9} "
                    f"{seconds[0]:>9.2f}s {min(seconds[1:]):>7.4f}s{note}"
                )


if __name__ == "__main__":
    main()
