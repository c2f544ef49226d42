"""The MindSpore twin of torch_twin.py: the same network as a MindSpore user writes it.

python -m tests.probe.twins.mindspore_twin DIR [--plant gelu] ──> a dump
"""

from __future__ import annotations

import math
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

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

__all__ = ["CompiledBlock", "Twin", "dump"]


class Block(nn.Cell):
    def __init__(self, plant: str) -> None:
        super().__init__()
        self.has_residual = plant != "residual"
        self.norm1 = nn.LayerNorm((WIDTH,), epsilon=1e-3 if plant == "eps" else EPS)
        self.qkv, self.proj = nn.Dense(WIDTH, 3 * WIDTH), nn.Dense(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm((WIDTH,), epsilon=EPS)
        gelu = nn.GELU(approximate=plant == "gelu")
        self.mlp = nn.SequentialCell(nn.Dense(WIDTH, 4 * WIDTH), gelu, nn.Dense(4 * WIDTH, WIDTH))
        self.matmul, self.softmax = ops.BatchMatMul(), ops.Softmax(axis=-1)

    def construct(self, x: Tensor, mask: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = ops.chunk(self.qkv(self.norm1(x)), 3, axis=-1)
        q, k, v = _heads(q), _heads(k), _heads(v)
        scores = self.matmul(q, k.swapaxes(-2, -1)) / math.sqrt(WIDTH // HEADS)
        scores = ops.masked_fill(scores, mask, -1e9)
        mixed = self.matmul(self.softmax(scores), v).swapaxes(1, 2).reshape(n, length, WIDTH)
        mixed = self.proj(mixed)
        x = x + mixed if self.has_residual else mixed
        return x + self.mlp(self.norm2(x))


def _heads(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1], HEADS, -1).swapaxes(1, 2)


class CompiledBlock(Block):
    construct = ms.jit(Block.construct)


class Twin(nn.Cell):
    def __init__(self, plant: str = "", block: type[Block] = Block) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.CellList([block(plant) if i == 1 else Block("") for i in range(N_BLOCKS)])
        self.norm, self.head = nn.LayerNorm((WIDTH,), epsilon=EPS), nn.Dense(WIDTH, VOCABULARY)
        self.mask = Tensor(np.triu(np.ones((LENGTH, LENGTH), bool), 1))
        self.places = Tensor(np.arange(LENGTH), ms.int32)

    def construct(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position(self.places)
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


def dump(
    out: Path,
    plant: str = "",
    level: str = "mix",
    task: str = "statistics",
    steps: int = 1,
    probe: str = "windtunnel",
    block: type[Block] = Block,
) -> Path:
    """Train for some steps and return the folder of the dump."""
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    if probe == "windtunnel":
        from windtunnel.mindspore import PrecisionDebugger
    else:
        from mindspore import mint
        from msprobe.mindspore import PrecisionDebugger

        mint.norm = ops.norm  # msProbe calls mint.norm, which has no kernel for the CPU
    model = Twin(plant, block)
    _load(model, plant)
    tokens, targets = (Tensor(each.astype(np.int32)) for each in batch())
    network = nn.WithLossCell(model, Loss())  # as MindSpore trains: every name then begins with _backbone
    optimizer = nn.SGD(model.trainable_params(), 0.1)
    step = ms.value_and_grad(network, None, optimizer.parameters)
    debugger = PrecisionDebugger(config_path=write_config(out, level, task))
    for _ in range(steps):
        debugger.start(network)
        _, gradients = step(tokens, targets)
        optimizer(gradients)
        debugger.stop()
        debugger.step()
    if probe == "windtunnel":
        debugger.close()
    return out


class Loss(nn.Cell):
    def construct(self, logits: Tensor, targets: Tensor) -> Tensor:
        return ops.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


_OWN_NAMES = {"gamma": "weight", "beta": "bias", "embedding_table": "weight"}


def _load(model: Twin, plant: str) -> None:
    values = weights()
    for name, parameter in model.parameters_and_names():
        path, _, last = name.rpartition(".")
        value = values[f"{path}.{_OWN_NAMES.get(last, last)}"]
        if plant == "transposed" and path == "blocks.1.proj" and last == "weight":
            value = np.ascontiguousarray(value.T)
        parameter.set_data(Tensor(value))


if __name__ == "__main__":
    given = arguments("windtunnel")
    dump(given.out, given.plant, given.level, given.task, given.steps, given.probe)
