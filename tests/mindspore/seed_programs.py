"""The little programs that the examples of msProbe's guide are run with, and how what they wrote is read.

config(level="L0") ──> ./config.json ──> a program in ./ ──> dump(step) ──> entries; file_of(dump, name) ──> an array
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.dataset import NumpySlicesDataset

from tests.mindspore.probe.probing import Dump
from windtunnel.mindspore import PrecisionDebugger

__all__ = [
    *(
        "LABELS",
        "MODES",
        "Network",
        "X",
        "as_before",
        "config",
        "dataset",
        "dump_of",
        "file_of",
        "loader",
        "steps",
    ),
]

MODES = {"dynamic": ms.PYNATIVE_MODE, "static": ms.GRAPH_MODE}
X = np.random.RandomState(0).randn(3, 2, 4).astype(np.float32)  # three batches of two rows
LABELS = np.array([[0, 2], [1, 1], [2, 0]], np.int32)


class Network(nn.Cell):
    """Two layers in a part `A`, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.A = nn.SequentialCell(nn.Dense(4, 4), nn.SequentialCell(nn.ReLU()))
        self.head = nn.Dense(4, 3)
        draw = np.random.RandomState(1)
        for parameter in self.trainable_params():
            parameter.set_data(Tensor(draw.randn(*parameter.shape).astype(np.float32)))

    def construct(self, x):
        return self.head(self.A(x))


@contextmanager
def as_before(folder: Path, monkeypatch: Any) -> Iterator[None]:
    """A working folder of its own, and afterwards MindSpore as it was."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("HCCL_DETERMINISTIC", "false")
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    yield
    if PrecisionDebugger.current is not None:
        PrecisionDebugger.current.close()
        PrecisionDebugger.current = None
    ms.set_context(mode=ms.PYNATIVE_MODE, deterministic="OFF")


def config(**keys: Any) -> str:
    """Write the guide's ./config.json."""
    content = {"task": "tensor", "dump_path": "./dump_path", "rank": [], "step": [], "level": "L1", **keys}
    Path("config.json").write_text(json.dumps(content))
    return "./config.json"


def loader() -> list[tuple[Tensor, Tensor]]:
    return [(Tensor(x), Tensor(labels)) for x, labels in zip(X, LABELS, strict=True)]


def dataset() -> NumpySlicesDataset:
    data = {"x": X.reshape(6, 4), "y": LABELS.reshape(6)}
    return NumpySlicesDataset(data, shuffle=False).batch(2)


def dump_of(step: int = 0, who: str | None = None) -> Dump:
    """What is in ./dump_path: there is one process in it, this one if none is named."""
    (folder,) = Path(f"dump_path/step{step}").iterdir()
    assert folder.match(who or f"proc{os.getpid()}")
    return Dump(folder)


def steps() -> list[str]:
    return sorted(path.name for path in Path("dump_path").iterdir())


def file_of(dump: Dump, name: str) -> np.ndarray:
    return np.load(dump.folder / "dump_tensor_data" / f"{name}.npy")
