"""MindSpore's guide to its dry run, by `windtunnel run`: the variables, the five printed facts, the two files.

What the figures are worth is tested elsewhere; here it is whether what the guide shows is there.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys

import pytest

SCRIPT = """
import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn

network = nn.SequentialCell(nn.Dense(512, 256), nn.ReLU(), nn.Dense(256, 10))
optimizer = nn.SGD(network.trainable_params(), 0.1)
loss = nn.CrossEntropyLoss()
gradients = ms.value_and_grad(lambda x, y: loss(network(x), y), None, network.trainable_params())
for _ in range(2):
    picked = mint.index_select(Tensor(np.ones((64, 512), np.float32)), 0, Tensor(np.arange(32), ms.int32))
    _, found = gradients(picked, Tensor(np.zeros(32, np.int32)))
    optimizer(found)
"""
FACTS = (
    r"Device MOC memory size: (\d+)M",
    r"MindSpore Used memory size: (\d+)M",
    r"MindSpore memory base address: (0x[0-9a-f]+)",
    r"Used peak memory usage \(without fragments\): (\d+)M",
    r"Actual peak memory usage \(with fragments\): (\d+)M",
)


def _run(folder, script, *arguments, **variables):
    (folder / "train.py").write_text(script)
    command = [
        sys.executable,
        "-m",
        "windtunnel.commands.main",
        "run",
        "--out",
        "out",
        *arguments,
        "train.py",
    ]
    return subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("level", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_the_variables_the_facts_and_the_files(tmp_path, level):
    done = _run(
        tmp_path, SCRIPT, MS_SIMULATION_LEVEL=str(level), MS_ALLOC_CONF="memory_tracker:True", COLUMNS="200"
    )
    assert done.returncode == 0, done.stderr
    found = [re.search(fact, done.stdout).group(1) for fact in FACTS]
    size, usable, _, used, actual = (int(value, 0) for value in found)
    assert 0 < used <= actual < usable < size == 64 * 1024
    rank = tmp_path / "out" / "rank0"
    rows = list(csv.DictReader((rank / "memory_block.csv").read_text().splitlines()))
    selected = [row for row in rows if row["node_name"] == "ms.IndexSelect"]
    if level == 3:
        assert [row["type"] for row in selected[-2:]] == ["PyNativeOutput", "WorkSpace"]
        assert (
            int(selected[-1]["size"]) == 77824 + 512
        )  # as in the guide, and what MindSpore adds to every block
    else:
        assert selected[-1]["type"] == "PyNativeOutput"
    assert (rank / "trace_view.json").exists() is (level == 3)
    if level == 3:
        events = json.loads((rank / "trace_view.json").read_text())
        kernels = [event for event in events if event.get("cat") == "kernel"]
        assert all(event["dur"] > 0 for event in kernels)
        assert "ms.IndexSelect" in {event["name"] for event in kernels}


WRONG = """
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

nn.Dense(512, 10)(Tensor(np.ones((4, 511), np.float32))).asnumpy()
"""


def test_level_0_finds_what_does_not_fit_together(tmp_path):
    """A batch whose rows are shorter than the model wants."""
    done = _run(tmp_path, WRONG, MS_SIMULATION_LEVEL="0")
    assert done.returncode != 0
    assert "511" in done.stdout + done.stderr
    assert "train.py" in done.stdout + done.stderr
