"""Small networks for static graphs, and how a dump of them is read.

watched(path, level=...) ──> Debugger ──> train(network, debugger) ──> losses as bytes; Dump(path) ──> entries, tensors
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from windtunnel.probe.mindspore.debugger import Debugger

__all__ = ["Attention", "Dump", "Perceptron", "Shared", "batch", "mode", "perceptron", "train", "watched"]


@contextmanager
def mode(wanted: int) -> Iterator[None]:
    """GRAPH_MODE or PYNATIVE_MODE for a while."""
    before = ms.get_context("mode")
    ms.set_context(mode=wanted)
    try:
        yield
    finally:
        ms.set_context(mode=before)


@contextmanager
def watched(path: Path, *, config: dict | None = None, **arguments) -> Iterator[Debugger]:
    """A debugger that is closed afterwards."""
    if config is not None:
        file = path.with_suffix(".json")
        file.write_text(json.dumps({"dump_path": str(path), **config}), encoding="utf-8")
        arguments["config_path"] = str(file)
    debugger = Debugger(dump_path=str(path), **arguments)
    try:
        yield debugger
    finally:
        debugger.close()


class Perceptron(nn.Cell):
    """Two layers, for which everything can be worked out by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(4, 3)
        self.act = nn.ReLU()
        self.last = nn.Dense(3, 2)

    def construct(self, x):
        return self.last(self.act(self.first(x)))


class Attention(nn.Cell):
    """One tensor with four users: the sum of its gradients depends on the order, in the last bit."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((8,))
        self.query, self.key, self.value, self.gate = (nn.Dense(8, 8) for _ in range(4))
        self.drop = nn.Dropout(p=0.25)
        self.last = nn.Dense(8, 8)

    def construct(self, x):
        h = self.norm(x)
        weights = ops.softmax(ops.matmul(self.query(h), self.key(h).swapaxes(-1, -2)))
        mixed = ops.matmul(weights, self.value(h)) * ops.sigmoid(self.gate(h))
        return self.last(self.drop(x + mixed)).sum()


class Shared(nn.Cell):
    """One cell that is called three times, twice with the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.SequentialCell(nn.Dense(4, 4), nn.Tanh())
        self.last = nn.Dense(4, 1)

    def construct(self, x, y):
        return self.last(self.tower(x) * 2 + self.tower(y) + self.tower(x)).sum()


def perceptron() -> Perceptron:
    """With weights that are written down."""
    network = Perceptron()
    for number, parameter in enumerate(network.get_parameters()):
        values = np.linspace(-1, 1, parameter.size) + number / 8
        parameter.set_data(Tensor(values.reshape(parameter.shape).astype(np.float32)))
    return network


def batch(seed: int, *shape: int) -> Tensor:
    return Tensor(np.random.RandomState(seed).randn(*shape).astype(np.float32))


def train(
    network: nn.Cell, debugger: Debugger | None, inputs: tuple, n_steps: int = 3, model=None
) -> list[bytes]:
    """Train, and return the losses bit for bit."""

    class Loss(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def construct(self, *args):
            return (self.network(*args) ** 2).sum()

    step = nn.TrainOneStepCell(Loss(), nn.Adam(network.trainable_params(), 0.01))
    step.set_train()
    losses = []
    for _ in range(n_steps):
        if debugger is not None:
            debugger.start(network if model is None else model)
        losses.append(step(*inputs).asnumpy().tobytes())
        if debugger is not None:
            debugger.step()
    return losses


class Dump:
    """One step's folder."""

    def __init__(self, path: Path, step: int = 0) -> None:
        (self.path,) = (path / f"step{step}").iterdir()
        self.header = self._read("dump.json")
        self.entries = self.header["data"]
        self.parents = self._read("construct.json")
        self.stacks = self._read("stack.json")

    def _read(self, name: str) -> dict:
        return json.loads((self.path / name).read_text(encoding="utf-8"))

    def tensor(self, name: str) -> np.ndarray:
        return np.load(self.path / "dump_tensor_data" / f"{name}.npy")
