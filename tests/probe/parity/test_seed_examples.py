"""The examples of msProbe's guide that have a meaning in PyTorch, run as they are written there."""

from __future__ import annotations

import json
import os
import random
import types

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.probe.probing import make_debugger, read_dump
from windtunnel.errors import UsageError
from windtunnel.pytorch import PrecisionDebugger, seed_all


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.A = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU()))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.A(x))


@pytest.fixture(autouse=True)
def _no_debugger():
    yield
    if PrecisionDebugger.current is not None:
        PrecisionDebugger.current.close()
    PrecisionDebugger.current = None


@pytest.fixture
def loader():
    torch.manual_seed(0)
    return [(torch.randn(2, 4), torch.tensor([0, 2])) for _ in range(3)]


def _config(tmp_path, **keys) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"dump_path": str(tmp_path / "dump"), **keys}))
    return str(path)


# ------------------------------------------------------------------ start, stop, step


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "L2"])
def test_every_step_of_a_training_loop(tmp_path, loader, level):
    debugger = PrecisionDebugger(config_path=_config(tmp_path, level=level, task="statistics"))
    model = Network()
    for data, label in loader:
        model.zero_grad()
        debugger.start(model)
        F.cross_entropy(model(data), label).backward()
        debugger.stop()
        debugger.step()
    steps = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert steps == ["step0", "step1", "step2"]
    dumps = [read_dump(tmp_path, step) for step in range(3)]
    assert all(list(dump.data) == list(dumps[0].data) for dump in dumps)  # counters begin anew
    assert dumps[0].header["level"] == level
    assert dumps[0].folder.name == f"proc{os.getpid()}"


def test_apis_need_no_model(tmp_path, loader):
    debugger = PrecisionDebugger(config_path=_config(tmp_path, level="L1"))
    model = Network()
    debugger.start()
    model(loader[0][0])
    debugger.stop()
    debugger.step()
    assert "Functional.linear.0.forward" in read_dump(tmp_path)


def test_forward_and_backward_of_a_block_of_code(tmp_path, loader):
    """start, the block, stop; backward and step come later."""
    debugger = make_debugger(tmp_path, level="mix", task="statistics")
    model = Network()
    for data, label in loader:
        debugger.start(model)
        output = model(data)
        debugger.stop()
        loss = F.cross_entropy(output, label)
        loss.backward()
        debugger.step()
    dump = read_dump(tmp_path)
    assert "Functional.linear.1.backward" in dump
    assert "Module.A.0.Linear.parameters_grad.0" in dump
    assert dump.names("cross_entropy") == []


def test_segments_of_one_step(tmp_path, loader):
    debugger = make_debugger(tmp_path, level="mix", task="statistics")
    model = Network()
    data, label = loader[0]
    debugger.start(model)
    hidden = model.A(data)
    debugger.stop()
    hidden = torch.tanh(hidden)
    debugger.start(model)
    output = model.head(hidden)
    debugger.stop()
    F.cross_entropy(output, label).backward()
    debugger.step()
    dump = read_dump(tmp_path)
    assert dump.names("tanh") == dump.names("cross_entropy") == []
    assert [name for name in dump.names("Functional") if "forward" in name] == [
        "Functional.linear.0.forward",
        "Functional.relu.0.forward",
        "Functional.linear.1.forward",
    ]
    assert {
        "Functional.linear.0.backward",
        "Functional.relu.0.backward",
        "Functional.linear.1.backward",
    } <= set(dump.data)
    assert list((tmp_path / "dump").iterdir()) == [tmp_path / "dump" / "step0"]


def test_what_is_stopped_is_in_valid_files_before_step(tmp_path, loader):
    debugger = make_debugger(tmp_path, level="L1", task="statistics")
    debugger.start()
    F.relu(loader[0][0])
    debugger.stop()
    assert "Functional.relu.0.forward" in read_dump(tmp_path)
    debugger.start()
    F.relu(loader[0][0])
    debugger.stop()
    assert "Functional.relu.1.forward" in read_dump(tmp_path)
    debugger.step()


def test_start_and_stop_may_be_called_twice(tmp_path, loader):
    debugger = make_debugger(tmp_path, level="L0", task="statistics")
    model = Network()
    debugger.stop()
    debugger.start(model)
    debugger.start(model)
    model(loader[0][0])
    debugger.stop()
    debugger.stop()
    debugger.step()
    assert read_dump(tmp_path).names("Module.head") == ["Module.head.Linear.forward.0"]


def test_a_part_of_a_model(tmp_path, loader):
    """Of the part that is given its sublayers are collected, not itself."""
    debugger = make_debugger(tmp_path, level="L0", task="statistics")
    model = Network()
    debugger.start(model.A)
    model(loader[0][0])
    debugger.stop()
    debugger.step()
    assert read_dump(tmp_path).names() == [
        "Module.0.Linear.forward.0",
        "Module.1.0.ReLU.forward.0",
        "Module.1.Sequential.forward.0",
    ]


def test_a_rank_of_ones_own(tmp_path, loader):
    debugger = make_debugger(tmp_path, level="L1", task="statistics")
    debugger.start(rank_id=5)
    F.relu(loader[0][0])
    debugger.stop()
    debugger.step()
    assert read_dump(tmp_path).folder.name == "rank5"


def test_only_wanted_steps_have_folders(tmp_path, loader):
    debugger = PrecisionDebugger(config_path=_config(tmp_path, level="L1", step=[0, "2-3"]))
    for _ in range(6):
        debugger.start()
        F.relu(loader[0][0])
        debugger.stop()
        debugger.step()
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == ["step0", "step2", "step3"]


def test_a_training_that_goes_on_counts_from_its_step(tmp_path, loader):
    debugger = make_debugger(tmp_path, level="L1", task="statistics", step=[101])
    debugger.set_init_step(100)
    for _ in range(3):
        debugger.start()
        F.relu(loader[0][0])
        debugger.stop()
        debugger.step()
    assert [path.name for path in (tmp_path / "dump").iterdir()] == ["step101"]


# ------------------------------------------------------------------ the debugger


def test_arguments_win_over_the_file_and_the_file_over_defaults(tmp_path):
    path = _config(tmp_path, level="L0", task="statistics", step=[0])
    debugger = PrecisionDebugger(
        path, dump_path=str(tmp_path / "elsewhere"), level="mix", task="tensor", step=[2]
    )
    assert (debugger.config.level, debugger.config.task) == ("mix", "tensor")
    assert str(debugger.config.dump_path) == str(tmp_path / "elsewhere")
    assert debugger.config.last_step == 2
    PrecisionDebugger.current = None
    debugger = PrecisionDebugger(dump_path=str(tmp_path / "elsewhere"))
    assert (debugger.config.level, debugger.config.task, debugger.config.summary_mode) == (
        "L1",
        "statistics",
        "statistics",
    )


def test_there_is_one_debugger_and_any_file_may_call_it(tmp_path, loader):
    """The other file imports the class and knows nothing of the object."""
    debugger = PrecisionDebugger(config_path=_config(tmp_path, level="L1"))
    assert PrecisionDebugger() is debugger
    other = types.ModuleType("other")
    source = "from windtunnel.pytorch import PrecisionDebugger\n"
    source += "def run(work):\n PrecisionDebugger.start()\n work()\n PrecisionDebugger.stop()\n PrecisionDebugger.step()\n"
    exec(source, vars(other))
    other.run(lambda: F.relu(loader[0][0]))
    assert "Functional.relu.0.forward" in read_dump(tmp_path)


def test_the_same_arguments_are_the_same_debugger(tmp_path):
    path = _config(tmp_path, level="L1")
    one = PrecisionDebugger(config_path=path)
    assert PrecisionDebugger(config_path=path) is one
    other = PrecisionDebugger(config_path=path, level="L2")  # msProbe would ignore this
    assert other is not one
    assert PrecisionDebugger.current is other
    assert other.config.level == "L2"


def test_a_debugger_as_a_block(tmp_path, loader):
    with PrecisionDebugger(config_path=_config(tmp_path, level="L1")) as debugger:
        for data, _ in loader:
            with debugger.watch():
                F.relu(data)
    for step in range(3):
        dump = read_dump(tmp_path, step)
        assert dump.names() == ["Functional.relu.0.forward"]
        assert dump.header["complete"] is True


def test_an_exception_in_the_block_leaves_complete_files(tmp_path, loader):
    debugger = make_debugger(tmp_path, level="L1", task="statistics")

    def work() -> None:
        with debugger.watch():
            F.relu(loader[0][0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert read_dump(tmp_path).header["complete"] is True
    assert torch._C._len_torch_function_stack() == 0


# ------------------------------------------------------------------ the files


def test_the_files_of_the_guide(tmp_path, loader):
    debugger = make_debugger(tmp_path, level="mix", task="tensor")
    model = Network()
    data, label = loader[0]
    debugger.start(model)
    F.cross_entropy(model(data), label).backward()
    debugger.stop()
    debugger.step()
    dump = read_dump(tmp_path)
    assert {path.name for path in dump.folder.iterdir()} == {
        "dump.json",
        "stack.json",
        "construct.json",
        "dump_tensor_data",
    }
    names = {path.name for path in (dump.folder / "dump_tensor_data").iterdir()}
    assert {
        "Functional.linear.0.forward.input.0.pt",
        "Functional.relu.0.backward.input.0.pt",
        "Module.head.Linear.forward.0.input.0.pt",
        "Module.head.Linear.forward.0.parameters.weight.pt",
        "Module.head.Linear.backward.0.output.0.pt",
        "Module.head.Linear.parameters_grad.0.weight.pt",
    } <= names
    forward = dump["Module.head.Linear.forward.0"]
    assert list(forward) == ["input_args", "input_kwargs", "output", "parameters"]
    assert list(forward["parameters"]) == ["weight", "bias"]
    assert list(dump["Module.head.Linear.backward.0"]) == ["input", "output"]
    element = forward["output"][0]
    keys = ["type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad", "data_name"]
    assert list(element)[: len(keys)] == keys
    stacks = dump.json("stack.json")
    assert all(len(stack) == 2 for stack in stacks.values())
    (lines,) = (lines for names, lines in stacks.values() if "Module.head.Linear.forward.0" in names)
    assert any("in forward, \n return self.head(self.A(x))" in line for line in lines)
    assert dump.json("construct.json")["Functional.relu.0.forward"] == "Module.A.1.0.ReLU.forward.0"


# ------------------------------------------------------------------ single points


def test_single_points_and_their_gradients(tmp_path):
    debugger = make_debugger(tmp_path, level="debug", task="tensor")
    x = torch.linspace(-1, 1, 6, requires_grad=True)
    for _ in range(2):  # two forwards in one step
        hidden = x * 2
        debugger.save({"h": hidden, "n": 3}, "hidden")
        debugger.save(hidden.relu(), "alone", save_backward=False)
        (hidden**2).sum().backward()
    debugger.step()
    dump = read_dump(tmp_path)
    assert sorted(dump.data) == [
        "alone.0.debug",
        "alone.1.debug",
        "hidden.0.debug",
        "hidden.1.debug",
        "hidden_grad.0.debug",
        "hidden_grad.1.debug",
    ]
    assert dump["hidden.0.debug"]["n"] == {"type": "int", "value": 3}
    assert dump["hidden_grad.0.debug"]["n"] is None
    gradient = dump.tensor(dump["hidden_grad.1.debug"]["h"])
    assert torch.equal(gradient, 4 * x.detach())
    assert dump["hidden.0.debug"]["h"]["data_name"] == "hidden.0.debug.h.pt"


def test_what_cannot_be_saved_is_reported(tmp_path, caplog):
    debugger = make_debugger(tmp_path, level="debug", task="statistics")
    debugger.save({1, 2}, "a set")
    debugger.save("text", "text")
    debugger.step()
    assert any('save("a set") was given a set' in record.getMessage() for record in caplog.records)
    assert read_dump(tmp_path).data == {"text.0.debug": {"type": "str", "value": "text"}}


# ------------------------------------------------------------------ seed_all


@pytest.fixture
def _as_it_was(monkeypatch):
    names = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
    for name in names:
        monkeypatch.setattr(F, name, getattr(F, name))
    for name in ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", torch.backends.cudnn.deterministic)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_as_it_was")
def test_a_seed_fixes_every_generator():
    def numbers():
        return random.random(), numpy.random.rand(), torch.rand(3).tolist()

    seed_all()
    first = numbers()
    seed_all(1234)
    assert numbers() == first
    seed_all(seed=1000)
    assert numbers() != first
    assert os.environ["PYTHONHASHSEED"] == "1000"


@pytest.mark.usefixtures("_as_it_was")
def test_mode_asks_for_deterministic_algorithms():
    seed_all(mode=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"]


@pytest.mark.usefixtures("_as_it_was")
def test_dropout_can_be_taken_out_of_layers_that_are_there_already():
    layers = [nn.Dropout(0.5), nn.Dropout2d(0.5), nn.AlphaDropout(0.5), nn.Dropout(0.5, inplace=True)]
    seed_all(rm_dropout=True)
    seed_all(rm_dropout=True)
    x = torch.ones(2, 3, 4, 5)
    for layer in [*layers, nn.FeatureAlphaDropout(0.5)]:
        assert torch.equal(layer(x.clone()), x)
    assert torch.equal(F.dropout(x, 0.9), x)
    assert torch.equal(F.dropout(x, p=0.9, training=True, inplace=False), x)


@pytest.mark.parametrize(
    "arguments", [{"seed": -1}, {"seed": "1"}, {"seed": 1.5}, {"mode": 1}, {"rm_dropout": "yes"}]
)
def test_a_seed_that_is_none(arguments):
    with pytest.raises(UsageError):
        seed_all(**arguments)
