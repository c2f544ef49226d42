"""Small MindSpore networks that are run under our probe and under msProbe.

build("mlp") ──> network, a batch, a loss: network(*inputs) ──> loss(output, labels)

Needs MindSpore only, so that a Python with msProbe and without windtunnel can run them too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

__all__ = ["MODELS", "Program", "build", "train_step"]


@dataclass
class Program:
    network: nn.Cell
    inputs: tuple
    labels: Tensor
    loss: Callable[[Any, Tensor], Tensor]


class Mlp(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(12, 16, activation="relu")
        self.norm = nn.LayerNorm((16,))
        self.last = nn.Dense(16, 4, has_bias=False)
        self.mul = ops.Mul()

    def construct(self, x, scale=2.0):
        x = self.first(x)
        x = self.norm(x) + ops.tanh(x) * 0.5
        x = self.mul(mint.abs(x), scale)
        return self.last(x)


class Cnn(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.SequentialCell(
            nn.Conv2d(2, 4, 3, pad_mode="same", has_bias=True),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
        )
        self.flatten = nn.Flatten()
        self.head = nn.Dense(16, 3)

    def construct(self, x):
        return self.head(self.flatten(self.features(x)))


class Attention(nn.Cell):
    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Dense(width, width)
        self.key = nn.Dense(width, width)
        self.value = nn.Dense(width, width)
        self.out = nn.Dense(width, width)
        self.product = ops.BatchMatMul()
        self.product_t = ops.BatchMatMul(transpose_b=True)
        self.softmax = nn.Softmax()

    def construct(self, x, mask):
        batch, length, width = x.shape
        shape = (batch, length, self.n_heads, width // self.n_heads)
        query, key, value = (
            layer(x).reshape(shape).transpose(0, 2, 1, 3) for layer in (self.query, self.key, self.value)
        )
        scores = self.product_t(query, key) / (width // self.n_heads) ** 0.5
        weights = self.softmax(ops.masked_fill(scores, mask, -1e4))
        mixed = self.product(weights, value).transpose(0, 2, 1, 3).reshape((batch, length, width))
        return self.out(mixed)


class Block(nn.Cell):
    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm((width,))
        self.attention = Attention(width, n_heads)
        self.norm2 = nn.LayerNorm((width,))
        self.up = nn.Dense(width, 2 * width)
        self.down = nn.Dense(2 * width, width)

    def construct(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.down(ops.gelu(self.up(self.norm2(x))))


class Transformer(nn.Cell):
    def __init__(self, width: int = 8, n_heads: int = 2, n_blocks: int = 2, vocabulary: int = 11) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.CellList([Block(width, n_heads) for _ in range(n_blocks)])
        self.norm = nn.LayerNorm((width,))
        self.head = nn.Dense(width, vocabulary, has_bias=False)

    def construct(self, tokens):
        length = tokens.shape[1]
        mask = ops.triu(ops.ones((length, length), ms.float32), 1) > 0
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x)).reshape((-1, 11))


class Mint(nn.Cell):
    """Layers and functions of mindspore.mint, a shared layer, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = mint.nn.Linear(6, 6)
        self.act = mint.nn.SiLU()
        self.last = mint.nn.Linear(6, 3)

    def construct(self, x):
        x = self.act(self.first(x))
        x = self.first(x)
        low, high = mint.split(mint.nn.functional.relu(x), 3, dim=1)
        x = mint.cat((low, high), dim=1) * mint.sigmoid(x)
        return self.last(x)


def build(name: str) -> Program:
    """A network and a batch, the same in every process."""
    ms.set_seed(7)
    draw = np.random.RandomState(3)
    network, *shape = MODELS[name]
    network = network()
    if name == "transformer":
        inputs = Tensor(draw.randint(0, 11, (2, 5)).astype(np.int32))
        labels = Tensor(draw.randint(0, 11, 10).astype(np.int32))
    else:
        inputs = Tensor(draw.randn(*shape).astype(np.float32))
        labels = Tensor(draw.randint(0, 3, shape[0]).astype(np.int32))
    for parameter in network.trainable_params():
        values = draw.uniform(-0.5, 0.5, parameter.shape).astype(np.float32)
        parameter.set_data(Tensor(values + (1.0 if parameter.name.endswith("gamma") else 0.0)))
    return Program(network, (inputs,), labels, nn.CrossEntropyLoss())


MODELS = {
    "mlp": (Mlp, 5, 12),
    "cnn": (Cnn, 2, 2, 4, 4),
    "transformer": (Transformer,),
    "mint": (Mint, 4, 6),
}


def train_step(program: Program) -> Callable[[], float]:
    """One step of a training: forward and backward by the functional style, and an update by hand.

    MindSpore's optimizers are compiled when first called, which takes longer than everything else here.
    """
    program.network.set_train()
    parameters = program.network.trainable_params()

    def forward(*inputs):
        return program.loss(program.network(*inputs[:-1]), inputs[-1])

    gradients = ms.value_and_grad(forward, None, ms.ParameterTuple(parameters))

    def step() -> float:
        loss, found = gradients(*program.inputs, program.labels)
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.set_data(Tensor(parameter.asnumpy() - np.float32(0.1) * gradient.asnumpy()))
        return float(loss.asnumpy())

    return step
