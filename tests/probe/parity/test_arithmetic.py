"""The fingerprint of the arithmetic: the same for the same bits, another for others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.probe.models import build
from tests.probe.parity.arithmetic import fingerprint
from tests.probe.parity.cases import CASES

MODELS = ("mlp", "cnn", "transformer")


@pytest.fixture(autouse=True)
def _as_it_was():
    n = torch.get_num_threads()
    yield
    torch.set_num_threads(n)


class _Nudge(TorchDispatchMode):
    """Moves one element of what one operator gives to the next number there is."""

    def __init__(self, operator: str) -> None:
        super().__init__()
        self.operator, self.n_moved = operator, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func.name() == self.operator and not self.n_moved:
            first = next(each for each in tree_leaves(found) if each is not None).reshape(-1)[:1]
            first.copy_(torch.nextafter(first, torch.full_like(first, float("inf"))))
            self.n_moved += 1
        return found


# Forward and backward: a product, a convolution, a normalisation, a distribution; and the numbers all begin with.
OPERATORS = [
    ("mlp", "aten::addmm"),
    ("mlp", "aten::mm"),
    ("mlp", "aten::uniform_"),
    ("cnn", "aten::convolution"),
    ("cnn", "aten::convolution_backward"),
    ("cnn", "aten::native_batch_norm_backward"),
    ("transformer", "aten::bmm"),
    ("transformer", "aten::_softmax"),
    ("transformer", "aten::native_layer_norm"),
    ("transformer", "aten::gelu_backward"),
    ("transformer", "aten::embedding_dense_backward"),
]


@pytest.mark.parametrize(("model", "operator"), OPERATORS)
def test_one_bit_of_one_kernel_changes_it(model, operator):
    case = CASES[f"mix md5 {model}"]
    with _Nudge(operator) as nudge:
        nudged = fingerprint(case)
    assert nudge.n_moved == 1
    assert nudged != fingerprint(case)


@pytest.mark.parametrize("name", ["mix md5 mlp", "mix ALL md5 zoo", "debug tensor"])
def test_nothing_else_changes_it(name):
    """Neither what memory held before, nor the state of chance, nor a second time."""
    first = fingerprint(CASES[name])
    rubbish = [torch.full((size,), float(size)) for size in range(1, 400)]
    del rubbish
    torch.manual_seed(99)
    assert fingerprint(CASES[name]) == first


_PROGRAM = "import json; from tests.probe.parity.test_arithmetic import as_computed; print(json.dumps(as_computed()))"


def as_computed() -> dict[str, list[str]]:
    """For each model its fingerprint, and a checksum of the gradients it has after a step."""
    return {model: [fingerprint(CASES[f"mix md5 {model}"]), _gradients(model)] for model in MODELS}


def _gradients(name: str) -> str:
    torch.set_num_threads(1)
    model, loss = build(name)
    loss(0).backward()
    crc = 0
    for parameter in model.parameters():
        crc = zlib.crc32(parameter.grad.contiguous().numpy(), crc)
    return f"{crc:08x}"


@pytest.mark.parametrize(
    "variables", [{}, {"ATEN_CPU_CAPABILITY": "default"}], ids=["as here", "without vectors"]
)
def test_it_is_that_of_another_process_where_the_results_are(variables):
    """Whether the other kernels come to other bits is the processor's affair: the fingerprint has to say which."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=os.environ | variables,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    there, here = json.loads(done.stdout), as_computed()
    are_same = {
        model: [one == other for one, other in zip(here[model], there[model], strict=True)]
        for model in MODELS
    }
    assert all(prints == gradients for prints, gradients in are_same.values()), are_same
    assert variables or all(prints for prints, _ in are_same.values())
