"""Level L2, started once around the whole training: steps are those of MindSpore's own dump, and `step` selects them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.commands.warm import run_warm_python

PROGRAM = """
import json, os, sys
import mindspore as ms, numpy as np
from mindspore import Tensor, nn
from windtunnel.mindspore import PrecisionDebugger

mode, kind, own = sys.argv[1:4]
ms.set_context(mode=getattr(ms, mode), device_target="CPU")
if own == "own":
    os.environ["MINDSPORE_DUMP_CONFIG"] = os.path.abspath("own.json")
else:
    debugger = PrecisionDebugger(config_path="config.json")
    debugger.start()

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(4, 2)
    def construct(self, x):
        return self.fc(x)
class Compiled(Net):
    @ms.jit
    def construct(self, x):
        return self.fc(x)

net = Net() if mode == "GRAPH_MODE" else Compiled()
x, y = np.ones((3, 4), np.float32), np.ones((3, 2), np.float32)
optimizer, loss = nn.SGD(net.trainable_params(), 0.1), nn.MSELoss()
if kind == "model":
    rows = ms.dataset.NumpySlicesDataset({"x": x, "y": y}).batch(1)
    ms.train.Model(net, loss, optimizer).train(1, rows)
elif kind == "loop":
    step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), optimizer)
    for _ in range(3):
        step(Tensor(x), Tensor(y))
else:  # gradients of two calls, then the optimizer
    step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), optimizer)
    for _ in range(2):
        net(Tensor(x))
        net(Tensor(x))
        step(Tensor(x), Tensor(y))
if own != "own":
    debugger.stop()
    debugger.step()
"""


def _dump(folder: Path, mode: str, kind: str, own: str = "", **settings: object) -> dict[str, list[str]]:
    """Step -> graph and name of every file, without its time."""
    dump = folder / (own or "ours")
    config = {"dump_path": str(dump), "level": "L2", "task": "tensor", **settings}
    (folder / "config.json").write_text(json.dumps(config))
    common = {"dump_mode": 0, "path": str(dump), "net_name": "Net", "iteration": "all", "saved_data": "tensor",
              "input_output": 0, "kernels": [], "support_device": [0], "statistic_category": []}  # fmt: skip
    native = {"common_dump_settings": common, "e2e_dump_settings": {"enable": True, "trans_flag": True}}
    (folder / "own.json").write_text(json.dumps(native))
    (folder / "program.py").write_text(PROGRAM)
    run_warm_python(["program.py", mode, kind, own], cwd=folder).check_returncode()
    found: dict[str, list[str]] = {}
    for path in sorted(dump.glob("rank_0/Net/*/*/*.npy")):
        name = re.sub(r"\.\d+(?=\.(input|output)\.)", "", path.name)
        found.setdefault(path.parent.name, []).append(f"{path.parent.parent.name}/{name}")
    return {step: sorted(names) for step, names in found.items()}


@pytest.mark.parametrize("kind", ["loop", pytest.param("model", marks=pytest.mark.thorough)])
def test_files_per_step_are_those_of_mindspores_own_dump(tmp_path, kind):
    own = _dump(tmp_path, "GRAPH_MODE", kind, "own")
    assert list(own) == ["0", "1", "2"]
    assert len(own["0"]) > 30
    assert _dump(tmp_path, "GRAPH_MODE", kind) == own


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("GRAPH_MODE", "model"), ("PYNATIVE_MODE", "model"),
     pytest.param("PYNATIVE_MODE", "loop", marks=pytest.mark.thorough)],
)  # fmt: skip
def test_step_selects_steps_of_a_training_with_one_start(tmp_path, mode, kind):
    found = _dump(tmp_path, mode, kind, step=[1])
    assert list(found) == ["1"]
    assert len(found["1"]) == len(set(found["1"])) > 30
    if mode == "PYNATIVE_MODE":  # what is not compiled is in folders of ours
        assert [path.name for path in (tmp_path / "ours").glob("step*")] == ["step1"]


def test_gradients_that_are_accumulated_stay_in_one_step(tmp_path):
    found = _dump(tmp_path, "GRAPH_MODE", "accumulate")
    assert list(found) == ["0", "1"]
    products = Counter(name.split(".")[1] for name in found["1"] if re.search(r"/MatMul\..*\.output\.", name))
    # two calls of the network's own graph, one of the graph of the training step
    assert (products["Default_fc-Dense_MatMul-op0"], products["Default_fc-Dense_MatMul-op1"]) == (2, 1)
