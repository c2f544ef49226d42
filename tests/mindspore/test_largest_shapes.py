"""Sizes that depend on values: the largest possible, in static graphs and in dynamic code, with the lines that have them."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, mint, nn, ops

ms.set_context(mode=ms.GRAPH_MODE)

class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(64, 32)
    def construct(self, x):
        hidden = self.fc(x)
        places = ops.nonzero(hidden > 0)
        picked = ops.gather_nd(hidden, places)
        return picked.sum() + ops.masked_select(hidden, hidden > 0).sum() + hidden[hidden > 0].sum()

network = Network()
optimizer = nn.SGD(network.trainable_params(), 0.1)
step = ms.value_and_grad(network, None, network.trainable_params())
for _ in range(2):
    loss, gradients = step(Tensor(np.ones((16, 64), np.float32)))
    optimizer(gradients)

@ms.jit
def counted(x):
    return ops.nonzero(x), ops.unique(x)[0], mint.unique(x), mint.unique_consecutive(x), ops.argwhere(x)

def picked(x):
    return ops.masked_select(x, x > 0).sum() + x[x > 0].sum() + x[x.sum(1) > 0].sum()

x = Tensor(np.ones((4, 8), np.float32))
print("static", [y.shape for y in counted(x)])
ms.set_context(mode=ms.PYNATIVE_MODE)
print("dynamic", [y.shape for y in (ops.nonzero(x), x.nonzero(), x.masked_select(x > 0), x.unique())])
print("masks", x[x > 0].shape, x[x.sum(1) > 0].shape, x[1:, Tensor([0, 2])].shape)
print("rows", ops.nonzero(x, as_tuple=True)[1].shape, mint.unique(x, return_counts=True, dim=1)[1].shape)
print("wider", ops.masked_select(Tensor(np.ones((4, 1), np.bool_)), x > 0).dtype)
print("gradient", ms.grad(picked)(x).shape)
x[x > 0] = 0
"""


def test_a_size_that_depends_on_values_is_the_largest_and_its_line_is_listed(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", "run", "--no-html", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "static [(32, 2), (32,), (32,), (32,), (32, 2)]" in done.stdout
    assert "dynamic [(32, 2), (32, 2), (32,), (32,)]" in done.stdout
    assert "masks (32,) (4, 8) (3, 2)" in done.stdout
    assert "rows (32,) (8,)" in done.stdout
    assert "wider Bool" in done.stdout
    assert "gradient (4, 8)" in done.stdout
    (rank,) = json.loads((tmp_path / "windtunnel-out" / "report.json").read_text())["ranks"]
    found = {(row["where"], row["what"]): row["value"] for row in rank["unknown_values"]}
    graph = f"train.py:{SCRIPT.splitlines().index('    loss, gradients = step(Tensor(np.ones((16, 64), np.float32)))') + 1}"
    assert found[graph, "how many elements are nonzero (nonzero, boolean mask)"] == 16 * 32
    assert found[graph, "how many elements a mask selects"] == 16 * 32
    assert rank["steps"] == 2
    # Weights, their gradients, and three times the hidden values that could be picked, with their indices.
    assert rank["peak_bytes"] > 3 * 16 * 32 * 4 + 16 * 32 * 2 * 8
