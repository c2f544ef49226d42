"""The functions of msProbe's guide for MindSpore, each with every parameter, on a CPU.

docs/mindspore-seed.md says of each which test runs it.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.communication import comm_func
from mindspore.mint import distributed
from mindspore.train import Model

from tests.mindspore.probe.probing import Dump
from tests.mindspore.seed_programs import (
    MODES,
    Network,
    X,
    as_before,
    config,
    dataset,
    dump_of,
    file_of,
    loader,
    steps,
)
from windtunnel.errors import UsageError
from windtunnel.mindspore import MsprobeInitStep, MsprobeStep, PrecisionDebugger, seed_all
from windtunnel.probe.mindspore.pynative.api_names import api_places


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    with as_before(tmp_path, monkeypatch):
        yield


# ------------------------------------------------------------------ every API with its parameters


def test_precision_debugger_takes_arguments_before_the_file():
    path = config(level="L0", task="statistics", step=[0])
    debugger = PrecisionDebugger(config_path=path, task="tensor", dump_path="./other", level="mix", step=[2])
    made = debugger.config
    assert (made.task, made.level, made.last_step) == ("tensor", "mix", 2)
    assert made.dump_path == Path("other").resolve()
    made = PrecisionDebugger(dump_path="./without_a_file").config
    assert (made.task, made.level) == ("statistics", "L1")


def test_start_takes_a_part_a_list_a_tuple_and_a_rank():
    """The given cell is not in the dump, what is below it is; in a list the index comes first."""
    debugger = PrecisionDebugger(config_path=config(level="L0", task="statistics"))
    model, data = Network(), loader()[0][0]
    below = ["0.Dense.forward.0", "1.0.ReLU.forward.0", "1.SequentialCell.forward.0"]
    for given, begin in (
        (model.A, ["Cell."]),
        ([model.A], ["Cell.0."]),
        ((model.head, model.A), ["Cell.1."]),
    ):
        debugger.start(given, rank_id=5)
        model(data)
        debugger.stop()
        debugger.step()
        folder = Path(f"dump_path/step{debugger.step_number - 1}/rank5")
        assert Dump(folder).names() == [begin[0] + name for name in below]


def test_what_start_cannot_take_is_reported_and_nothing_else(caplog):
    debugger = PrecisionDebugger(config_path=config(level="L0"))
    with pytest.raises(UsageError, match="was given int"):
        debugger.start(3)
    assert "error of the probe" not in caplog.text
    assert debugger.collector.n_errors == 0


def test_a_start_step():
    debugger = PrecisionDebugger(config_path=config(step=[101]))
    debugger.set_init_step(100)
    for data, _ in loader():
        debugger.start()
        ops.relu(data)
        debugger.stop()
        debugger.step()
    assert steps() == ["step101"]
    np.testing.assert_array_equal(file_of(dump_of(101), "Functional.relu.0.forward.input.0"), X[1])


@pytest.mark.parametrize("mode", MODES)
def test_a_training_that_goes_on_finds_its_step(mode):
    """MsprobeInitStep: in the guide for static graphs at O0 and O1, here also for dynamic ones."""
    ms.set_context(mode=MODES[mode])
    debugger = PrecisionDebugger(config_path=config(level="L0", task="statistics"))
    model = Network()
    debugger.start(model)
    trainer = Model(model, nn.CrossEntropyLoss(), nn.SGD(model.trainable_params(), 0.1))
    callbacks = [MsprobeInitStep(), MsprobeStep(debugger)]
    trainer.train(3, dataset(), callbacks=callbacks, initial_epoch=2)
    assert steps() == ["step6", "step7", "step8"]


def test_single_points_of_every_type():
    debugger = PrecisionDebugger(config_path=config(level="debug"))

    def forward(x):
        hidden = x * 2
        debugger.save(hidden, "tensor")
        debugger.save({"h": hidden, "n": 3}, "dict")
        debugger.save([hidden, (1.5, "text")], "list")
        debugger.save((hidden,), "tuple", save_backward=False)
        for value, name in ((3, "int"), (1.5, "float"), ("text", "str")):
            debugger.save(value, name)
        return (hidden**2).sum()

    for _ in range(2):  # two calls in one step
        ms.grad(forward)(Tensor(X[0]))
    debugger.step()
    dump = dump_of()
    names = ["tensor", "dict", "list", "tuple", "int", "float", "str"]
    points = [f"{name}.{n}.debug" for n in range(2) for name in names]
    gradients = [f"{name}_grad.{n}.debug" for n in range(2) for name in ("tensor", "dict", "list")]
    assert sorted(dump.data) == sorted(points + gradients)
    assert dump["int.1.debug"] == {"type": "int", "value": 3}
    assert dump["list.0.debug"][1] == [{"type": "float", "value": 1.5}, {"type": "str", "value": "text"}]
    assert dump["dict_grad.0.debug"]["n"] is None
    np.testing.assert_array_equal(file_of(dump, "dict_grad.1.debug.h"), 4 * X[0])
    np.testing.assert_array_equal(file_of(dump, "tuple.0.debug.0"), 2 * X[0])


def test_matmul_as_a_custom_api_and_restored():
    """The guide's example: mindspore.ops.matmul with a prefix of one's own, which wins over ours."""
    original = ops.matmul
    debugger = PrecisionDebugger(config_path=config())
    debugger.register_custom_api(ops, "matmul", "Mine")
    for step, name in enumerate(("Mine.matmul.0", "Functional.matmul.0")):
        debugger.start()
        ms.grad(lambda x: ops.matmul(x, x.T).sum())(Tensor(X[step]))
        debugger.stop()
        debugger.step()
        dump = dump_of(step)
        assert dump.names("matmul") == [f"{name}.forward", f"{name}.backward"]
        np.testing.assert_allclose(file_of(dump, f"{name}.forward.output.0"), X[step] @ X[step].T, rtol=1e-5)
        debugger.restore_custom_api(ops, "matmul")
    assert ops.matmul is original


def test_a_list_of_apis():
    """Of one's own, in the style of msProbe's support_wrap_ops.yaml; or by `list` in the config."""
    Path("ops.yaml").write_text("ops:\n  - adaptive_avg_pool1d\n  - relu\n")
    x = Tensor(np.ones((1, 2, 4), np.float32))
    pooled = ["Functional.relu.0.forward", "Functional.adaptive_avg_pool1d.0.forward"]
    for keys, names in (({"api_list": "ops.yaml"}, pooled), ({"tensor": {"list": ["relu"]}}, pooled[:1])):
        debugger = PrecisionDebugger(config_path=config(**keys), dump_path=f"./{len(names)}")
        debugger.start()
        ops.adaptive_avg_pool1d(mint.abs(ops.relu(x)), 2)
        debugger.stop()
        debugger.step()
        (folder,) = Path(f"{len(names)}/step0").iterdir()
        assert Dump(folder).names() == names


# ------------------------------------------------------------------ seed_all


def test_a_seed_of_every_generator_and_the_hash():
    def draw():
        weight = nn.Dense(3, 3).weight.asnumpy().tolist()
        sample = nn.probability.distribution.Normal(0.0, 1.0, dtype=ms.float32).sample((2,))
        return random.random(), np.random.rand(), weight, sample.asnumpy().tolist()

    seed_all()
    first = draw()
    assert os.environ["PYTHONHASHSEED"] == "1234"
    seed_all(seed=1234)
    assert draw() == first
    seed_all(seed=1000)
    assert all(one != other for one, other in zip(draw(), first, strict=True))
    assert os.environ["PYTHONHASHSEED"] == "1000"
    programs = [
        subprocess.run([sys.executable, "-c", "print(hash('text'))"], capture_output=True) for _ in "ab"
    ]
    assert programs[0].stdout == programs[1].stdout


def test_deterministic_operators_and_communication():
    assert ms.get_context("deterministic") == "OFF"
    seed_all(mode=True)
    seed_all(seed=7, mode=True)  # as often as one likes
    assert ms.get_context("deterministic") == "ON"
    assert os.environ["HCCL_DETERMINISTIC"] == "true"


class FiveDropouts(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.one = ops.Dropout(keep_prob=0.5)
        self.two = ops.Dropout2D(keep_prob=0.5)
        self.three = ops.Dropout3D(keep_prob=0.5)
        self.layer = mint.nn.Dropout(p=0.5)

    def construct(self, x):
        x = self.three(x)[0]
        x = self.two(x.reshape((2, 3, 4, 4)))[0]
        return mint.nn.functional.dropout(self.layer(self.one(x)[0]), p=0.5)


@pytest.mark.parametrize("mode", MODES)
def test_the_five_dropouts_are_gone(mode, monkeypatch):
    for kind in (ops.Dropout, ops.Dropout2D, ops.Dropout3D, mint.nn.Dropout):
        monkeypatch.setattr(kind, "__init__", kind.__init__)
    monkeypatch.setattr(mint.nn.functional, "dropout", mint.nn.functional.dropout)
    ms.set_context(mode=MODES[mode])
    seed_all(rm_dropout=True)
    x = np.random.RandomState(4).randn(2, 3, 4, 2, 2).astype(np.float32)
    network = FiveDropouts().set_train()
    np.testing.assert_array_equal(network(Tensor(x)).asnumpy(), x.reshape(2, 3, 4, 4))


# ------------------------------------------------------------------ communication


def test_communication_has_its_prefixes_and_what_arrived_is_the_output(monkeypatch):
    """Every function of both modules; what they do between two processes is tried in a test of its own."""
    places = {(prefix, name) for _, name, prefix in api_places()}
    for prefix, home in (("Distributed", comm_func), ("MintDistributed", distributed)):
        for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "send"):
            assert hasattr(home, name)
            assert (prefix, name) in places
    waited = []

    def all_reduce(tensor, op="sum", group=None, async_op=False):
        tensor.copy_(tensor * 2)
        return SimpleNamespace(wait=lambda: waited.append(1)) if async_op else None

    all_reduce.__module__ = distributed.__name__
    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    debugger = PrecisionDebugger(config_path=config(level="L1"))
    debugger.start()
    distributed.all_reduce(Tensor([1.0, 2.0]))
    distributed.all_reduce(Tensor([3.0]), async_op=True)
    debugger.stop()
    debugger.step()
    dump = dump_of()
    assert dump.names() == ["MintDistributed.all_reduce.0.forward", "MintDistributed.all_reduce.1.forward"]
    np.testing.assert_array_equal(file_of(dump, "MintDistributed.all_reduce.0.forward.input.0"), [1.0, 2.0])
    np.testing.assert_array_equal(file_of(dump, "MintDistributed.all_reduce.0.forward.output.0"), [2.0, 4.0])
    np.testing.assert_array_equal(file_of(dump, "MintDistributed.all_reduce.1.forward.output.0"), [6.0])
    assert waited == [1]


RANKS = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, mint
from mindspore.communication import get_rank, init
from mindspore.mint import distributed
from windtunnel.mindspore import PrecisionDebugger
ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
debugger = PrecisionDebugger(dump_path="./dump_path", task="tensor", level="L1")
debugger.start()
mint.abs(Tensor([1.0]))
init()
x = Tensor(np.full(2, get_rank() + 1, np.float32))
distributed.all_reduce(x)
handle = distributed.all_reduce(x, async_op=True)
if handle is not None:
    handle.wait()
assert x.asnumpy().tolist() == [6.0, 6.0]
debugger.stop()
debugger.step()
"""


STATIC_RANKS = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops
from windtunnel.mindspore import PrecisionDebugger
ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
debugger = PrecisionDebugger(config_path="./config.json")
debugger.start()
from mindspore.communication import get_rank, init
init()
class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(2, 2, weight_init="ones", bias_init="zeros")
        self.reduce = ops.AllReduce()
    def construct(self, x):
        return self.reduce(self.fc(x))
Network()(Tensor(np.full((1, 2), get_rank() + 1, np.float32)))
debugger.stop()
debugger.step()
"""


@pytest.mark.thorough
def test_in_static_graphs_start_comes_before_init():
    """Under msrun: each rank's kernels are in the folder of the rank that it gets later."""
    config(level="L2", task="tensor")
    _two_ranks(STATIC_RANKS)
    for rank in (0, 1):
        folder = Path(f"dump_path/rank_{rank}/Net/0/0")
        (sent,) = folder.glob("AllReduce.*.input.0.*.npy")
        (arrived,) = folder.glob("AllReduce.*.output.0.*.npy")
        np.testing.assert_array_equal(np.load(sent), np.full((1, 2), 2.0 * (rank + 1)))
        np.testing.assert_array_equal(np.load(arrived), np.full((1, 2), 6.0))


def test_in_static_graphs_arguments_do_without_a_file():
    ms.set_context(mode=ms.GRAPH_MODE)
    debugger = PrecisionDebugger(dump_path="./dump_path", task="tensor", level="L0")
    model = Network()
    debugger.start(model)
    ms.grad(model)(Tensor(X[0]))
    debugger.step()
    np.testing.assert_array_equal(file_of(dump_of(0), "Cell.A.0.Dense.forward.0.input.0"), X[0])


@pytest.mark.thorough
def test_two_ranks_have_their_folders_and_what_they_exchanged():
    """Under msrun. The rank is known only after init(), by when the folder is there: it is renamed."""
    _two_ranks(RANKS)
    names = sorted(path.name for path in Path("dump_path/step0").iterdir())
    assert names[1:] == ["rank0", "rank1"]
    assert names[0].startswith("proc")  # of msrun's scheduler, which runs the program up to init()
    for rank in (0, 1):
        dump = Dump(Path(f"dump_path/step0/rank{rank}"))
        call = "MintDistributed.all_reduce"
        np.testing.assert_array_equal(file_of(dump, f"{call}.0.forward.input.0"), np.full(2, rank + 1))
        np.testing.assert_array_equal(file_of(dump, f"{call}.0.forward.output.0"), [3.0, 3.0])
        np.testing.assert_array_equal(file_of(dump, f"{call}.1.forward.output.0"), [6.0, 6.0])


def _two_ranks(program: str) -> None:
    Path("program.py").write_text(program)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    run = [sys.executable, "-m", "mindspore.parallel.cluster.run", "--worker_num=2", "--local_worker_num=2"]
    run += [f"--master_port={port}", "--join=True", "--log_dir=logs", "program.py"]
    folder = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(run, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
