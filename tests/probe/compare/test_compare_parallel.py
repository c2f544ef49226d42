"""One rank against two tensor-parallel ones, through the real collector; the ranks take turns in this process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from windtunnel.probe.compare.comparison import compare_dumps
from windtunnel.probe.compare.first_divergence import Findings
from windtunnel.probe.compare.tolerance import Tolerance
from windtunnel.pytorch import PrecisionDebugger

WIDTH, INNER, LAYERS = 16, 32, 3
X = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(0))


class Rank:
    """Which rank of how many; `missing` is the number of the layer that forgets its all-reduce."""

    def __init__(self, rank: int, size: int, missing: int | None = None) -> None:
        self.rank, self.size, self.missing = rank, size, missing


class Layer(nn.Module):
    """x + fc2(relu(fc1(norm(x)))), fc1 divided by columns and fc2 by rows."""

    def __init__(self, number: int, place: Rank) -> None:
        super().__init__()
        self.number, self.place = number, place
        self.norm, self.act = nn.LayerNorm(WIDTH), nn.ReLU()
        torch.manual_seed(number)
        fc1, fc2 = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH, bias=False)
        self.whole = (fc1.weight.data, fc1.bias.data, fc2.weight.data)
        share = slice(place.rank * INNER // place.size, (place.rank + 1) * INNER // place.size)
        self.fc1, self.fc2 = (
            nn.Linear(WIDTH, INNER // place.size),
            nn.Linear(INNER // place.size, WIDTH, bias=False),
        )
        self.fc1.weight.data, self.fc1.bias.data = (
            fc1.weight.data[share].clone(),
            fc1.bias.data[share].clone(),
        )
        self.fc2.weight.data = fc2.weight.data[:, share].clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc2(self.act(self.fc1(self.norm(x))))
        if self.place.size > 1 and self.number != self.place.missing:
            y = AllReduce.apply(y, self, x)
        return x + y


class AllReduce(torch.autograd.Function):
    """The sum over all ranks, as a rank receives it: from outside, rounded in another order."""

    @staticmethod
    def forward(context, partial, layer, x):
        weight1, bias1, weight2 = (each.numpy() for each in layer.whole)
        x = x.numpy().astype(np.float64)
        normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + layer.norm.eps)
        whole = np.maximum(normed @ weight1.T + bias1, 0) @ weight2.T
        return torch.from_numpy(whole.astype(np.float32))

    @staticmethod
    def backward(context, gradient):
        return gradient, None, None


def dump(folder: Path, size: int, missing: int | None = None, **settings: str) -> Path:
    for rank in range(size):
        model = nn.Sequential(*(Layer(number, Rank(rank, size, missing)) for number in range(LAYERS)))
        config = folder.with_suffix(f".{rank}.json")
        folder.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps({"task": "statistics", "dump_path": str(folder), **settings}))
        debugger = PrecisionDebugger(config_path=str(config))
        debugger.start(model, rank_id=rank)
        with torch.no_grad():
            model(X)
        debugger.stop()
        debugger.step()
        debugger.close()
    return folder


def compare(a: Path, b: Path) -> Findings:
    findings = Findings()
    for found in compare_dumps(a, b, Tolerance()):
        findings.add(found)
    return findings


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_two_ranks_equal_one(tmp_path, level, task):
    one, two = (
        dump(tmp_path / "one", 1, level=level, task=task),
        dump(tmp_path / "two", 2, level=level, task=task),
    )
    for findings in (compare(one, two), compare(two, one)):
        assert findings.first is None
        assert findings.n_compared > 30
        assert findings.n_nothing == 0


@pytest.mark.parametrize(
    ("level", "item"),
    [("L0", "Module.1.Layer.forward.0.output.0"), ("mix", "Tensor.__add__.1.forward.output.0")],
)
def test_a_missing_all_reduce_is_found_where_its_result_is_used(tmp_path, level, item):
    one, bad = dump(tmp_path / "one", 1, level=level), dump(tmp_path / "bad", 2, 1, level=level)
    first = compare(one, bad).first
    assert first.item == item
    assert "missing all-reduce" in " ".join(first.sentences)


def test_a_missing_all_reduce_against_the_same_number_of_ranks(tmp_path):
    good, bad = dump(tmp_path / "good", 2, level="L0"), dump(tmp_path / "bad", 2, 1, level="L0")
    findings = compare(good, bad)
    # fc2's own output is a partial sum in both; the sum is made after it, and missed where it is used.
    assert findings.first.item == "Module.1.Layer.forward.0.output.0"
    assert findings.n_parted == 2
