"""The program of which ../shared has msProbe's dumps, and the parts of these dumps that are compared.

run_sample(folder, level, task, summary, PrecisionDebugger) ──> two of three steps dumped into `folder`
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

__all__ = ["SAMPLES", "run_sample", "train_sample"]

SAMPLES = {
    "ms_L0_statistics_statistics": ("L0", "statistics", "statistics"),
    "ms_L1_statistics_md5": ("L1", "statistics", "md5"),
    "ms_mix_tensor_statistics": ("mix", "tensor", "statistics"),
    "ms_debug_statistics_statistics": ("debug", "statistics", "statistics"),
}


class Net(nn.Cell):
    def __init__(self, debugger: Any) -> None:
        super().__init__()
        self.debugger = debugger
        self.conv1 = nn.Conv2d(1, 2, 3, pad_mode="same", has_bias=True)
        self.relu = nn.ReLU()
        self.fc = nn.Dense(2 * 4 * 4, 3)
        self.mul = ops.Mul()

    def construct(self, x):
        x = self.relu(self.conv1(x))
        x = self.mul(x.reshape((2, -1)), 2.0)
        self.debugger.save({"h": x, "n": 3}, "hidden")
        x = ops.tanh(x) + ms.mint.abs(x)
        return self.fc(x)


def run_sample(
    folder: Path, level: str, task: str, summary: str, debugger_class: type, seed_all: Any
) -> None:
    """Run the sample; its weights are drawn by MindSpore, so the seed is part of it."""
    section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": summary}
    config = {"task": task, "dump_path": str(folder / "dump"), "rank": [], "step": [0, 1], "level": level}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | {task: section}))
    seed_all(1234)
    train_sample(debugger_class(config_path=str(folder / "config.json")))


def train_sample(debugger: Any) -> list[Tensor]:
    """Train the sample under a debugger; the gradients of every step."""
    net, loss_fn = Net(debugger), nn.CrossEntropyLoss()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    gradients = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, optimizer.parameters)
    draw, every = np.random.RandomState(0), []
    for _ in range(3):
        x = Tensor(draw.randn(2, 1, 4, 4).astype(np.float32))
        y = Tensor(np.array([0, 2], np.int32))
        debugger.start(net)
        _, found = gradients(x, y)
        optimizer(found)
        debugger.stop()
        debugger.step()
        every += found
    return every
