"""MindSpore's guide to its dry run, by `windtunnel run`: the variables, the five printed facts, the two files.

What the figures are worth is tested elsewhere; here it is whether what the guide shows is there.
"""

from __future__ import annotations

import csv
import json
import os
import re

import pytest

from tests.commands.cli import PATIENCE_S
from tests.commands.warm import run_warm

SCRIPT = """
import os
import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn
from mindspore.utils.dryrun import mock

network = nn.SequentialCell(nn.Dense(512, 256), nn.ReLU(), nn.Dense(256, 10))
optimizer = nn.SGD(network.trainable_params(), 0.1)
loss = nn.CrossEntropyLoss()
gradients = ms.value_and_grad(lambda x, y: loss(network(x), y), None, network.trainable_params())
print("level", os.environ["MS_SIMULATION_LEVEL"])
profiler = ms.Profiler(output_path="./data")
for _ in range(2):
    picked = mint.index_select(Tensor(np.ones((64, 512), np.float32)), 0, Tensor(np.arange(32), ms.int32))
    value, found = gradients(picked, Tensor(np.zeros(32, np.int32)))
    optimizer(found)
    print("loss", mock(2.5, value.asnumpy))
profiler.analyse()
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
    return run_warm(
        ["run", "--out", "out", *arguments, "train.py"], folder, os.environ | variables, PATIENCE_S
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
    assert (rank / "run.log").read_text().count("loss 2.5") == 2
    assert f"level {level}" in (rank / "run.log").read_text()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["ranks"][0]["unknown_values"] == []
    # Where the guide says, and in the folder of the run.
    assert (tmp_path / "rank0" / "memory_block.csv").read_text() == (rank / "memory_block.csv").read_text()
    assert "rank0/memory_block.csv was written" in done.stdout
    rows = list(csv.DictReader((rank / "memory_block.csv").read_text().splitlines()))
    selected = [(row["type"], int(row["size"])) for row in rows if row["node_name"] == "IndexSelect"]
    call = [("PyNativeOutput", 32 * 512 * 4 + 512)]
    if level == 3:
        call += [
            ("WorkSpace", 77824 + 512)
        ]  # an input from the guide, and what MindSpore adds to every block
    assert selected == 2 * call  # one call in each step
    assert ("the workspace of ms.IndexSelect" in done.stdout) is (
        level == 3
    )  # which says that it is an input
    trace = rank / "trace_view.json"
    assert trace.exists() is (level == 3)
    profiled = list(tmp_path.glob("data/*_ascend_ms/ASCEND_PROFILER_OUTPUT/trace_view.json"))
    assert [path.read_bytes() for path in profiled] == ([trace.read_bytes()] if level == 3 else [])
    if level == 3:
        events = json.loads((rank / "trace_view.json").read_text())
        kernels = [event for event in events if event.get("cat") == "kernel"]
        assert all(event["dur"] > 0 for event in kernels)
        # What runs before the network is first called belongs to no step, and is not in the trace.
        assert [event["name"] for event in kernels].count("ms.IndexSelect") == 1


ROWS = """
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

nn.Dense(512, 10)(Tensor(np.ones((4, 511), np.float32))).asnumpy()
"""
STRATEGY = """
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.communication import init

class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.product = ops.MatMul().shard(((1, 4), (4, 1)))
    def construct(self, x, y):
        return self.product(x, y)

ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
Network()(Tensor(np.ones((8, 8), np.float32)), Tensor(np.ones((8, 8), np.float32)))
"""


@pytest.mark.parametrize(
    ("script", "said"), [(ROWS, "511"), (STRATEGY, "strategy")], ids=["rows", "strategy"]
)
def test_level_0_finds_what_does_not_fit_together(tmp_path, script, said):
    """A batch whose rows are shorter than the model wants; a strategy for four cards on two."""
    done = _run(tmp_path, script, MS_SIMULATION_LEVEL="0", RANK_SIZE="2", RANK_ID="0")
    assert done.returncode != 0
    assert said in done.stdout + done.stderr
    assert "train.py" in done.stdout + done.stderr


GRAPH = """
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.communication import init
from mindspore.parallel.auto_parallel import AutoParallel

ms.set_context(mode=ms.GRAPH_MODE)
init()
network = nn.SequentialCell(nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
optimizer, loss = nn.SGD(network.trainable_params(), 0.1), nn.CrossEntropyLoss()
def forward(x, y):
    return loss(network(x), y)
gradients = ms.value_and_grad(forward, None, network.trainable_params())
def train_step(x, y):
    value, found = gradients(x, y)
    optimizer(found)
    return value
parallel = AutoParallel(train_step, parallel_mode="semi_auto")
for number in range(9):
    print("number", number)
    parallel(Tensor(np.ones((8, 64), np.float32)), Tensor(np.zeros(8, np.int32)))
"""


def test_level_0_tells_the_phases_of_the_compiler_and_steps_end_a_train_step_function(tmp_path):
    done = _run(tmp_path, GRAPH, "--steps", "2", MS_SIMULATION_LEVEL="0", RANK_SIZE="2", RANK_ID="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"number (\d)", done.stdout) == ["0", "1"]
    (rank,) = json.loads((tmp_path / "out" / "report.json").read_text())["ranks"]
    built = rank["build_time_us"]
    assert built["AutoParallel"] > 0
    assert built["AutoParallel: type_inference"] > 1000
    assert built["AutoParallel: optimize"] > 1000
    assert "TotalTime" not in done.stdout
