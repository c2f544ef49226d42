"""The examples of msProbe's guide for MindSpore, run on a CPU as they are written there.

Only two lines differ from the guide: where PrecisionDebugger is imported from, and the device. docs/mindspore-seed.md
says of each example which test runs it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.train import Model

from tests.commands.warm import run_warm_python
from tests.mindspore.probe.probing import Dump
from tests.mindspore.seed_programs import (
    LABELS,
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
from windtunnel.mindspore import MsprobeStep, PrecisionDebugger, seed_all


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    with as_before(tmp_path, monkeypatch):
        yield


def _cells_of(path: str, kind: str) -> list[str]:
    return [f"Cell.{path}.{kind}.{way}.0" for way in ("forward", "parameters_grad", "backward")]


# ------------------------------------------------------------------ cells, APIs and both, in both modes


@pytest.mark.parametrize("mode", MODES)
def test_l0_in_a_loop_of_ones_own(mode):
    """L0: start(model), the step, stop, step; the gradient is that of `ms.grad(model)(data)`. No stop in static graphs."""
    ms.set_context(mode=MODES[mode])
    debugger = PrecisionDebugger(config_path=config(level="L0"))
    model = Network()
    for data, _ in loader()[:2]:  # in a static graph each ms.grad compiles anew
        debugger.start(model)
        ms.grad(model)(data)
        if mode == "dynamic":
            debugger.stop()
        debugger.step()
    assert steps() == ["step0", "step1"]
    weights = {key: value.asnumpy() for key, value in model.parameters_dict().items()}
    for step in range(2):
        dump = dump_of(step)
        assert {name.partition(".forward")[0] for name in dump.names(".forward.")} == {
            "Cell.A.0.Dense",
            "Cell.A.1.0.ReLU",
            "Cell.A.1.SequentialCell",
            "Cell.A.SequentialCell",
            "Cell.head.Dense",
        }
        hidden = np.maximum(X[step] @ weights["A.0.weight"].T + weights["A.0.bias"], 0)
        out = hidden @ weights["head.weight"].T + weights["head.bias"]
        back = np.ones_like(out) @ weights["head.weight"]
        for name, value in {
            "Cell.A.0.Dense.forward.0.input.0": X[step],
            "Cell.head.Dense.forward.0.output.0": out,
            "Cell.head.Dense.forward.0.parameters.weight": weights["head.weight"],
            "Cell.head.Dense.backward.0.input.0": np.ones_like(out),
            "Cell.head.Dense.backward.0.output.0": back,
            "Cell.A.1.0.ReLU.backward.0.output.0": back * (hidden > 0),
        }.items():
            np.testing.assert_allclose(file_of(dump, name), value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("mode", "level"), [("dynamic", "L0"), ("dynamic", "mix"), ("static", "L0")])
def test_cells_under_the_high_level_api(mode, level):
    """start(model) once, then Model.train with MsprobeStep(debugger)."""
    ms.set_context(mode=MODES[mode])
    debugger = PrecisionDebugger(config_path=config(level=level))
    model = Network()
    before = model.head.weight.asnumpy().copy()
    debugger.start(model)
    trainer = Model(model, nn.CrossEntropyLoss(), nn.SGD(model.trainable_params(), 0.1), metrics={"accuracy"})
    trainer.train(1, dataset(), callbacks=[MsprobeStep(debugger)])
    assert steps() == ["step0", "step1", "step2"]
    for step in range(3):
        dump = dump_of(step)
        assert {*_cells_of("A.0", "Dense"), *_cells_of("head", "Dense")} <= set(dump.data)
        np.testing.assert_array_equal(file_of(dump, "Cell.A.0.Dense.forward.0.input.0"), X[step])
        np.testing.assert_allclose(file_of(dump, "Cell.head.Dense.forward.0.parameters.weight"), before, 1e-5)
        before = before - 0.1 * file_of(dump, "Cell.head.Dense.parameters_grad.0.weight")
    assert ("Functional.cross_entropy.0.backward" in dump_of(2)) is (level == "mix")


@pytest.mark.parametrize("gives_model", [False, True])
def test_l1_without_and_with_a_model(gives_model):
    """Primitives are collected when the model is known, functions always."""
    debugger = PrecisionDebugger(config_path=config(level="L1"))
    model = Network()
    loss = nn.CrossEntropyLoss()
    for data, label in loader():
        debugger.start(model if gives_model else None)
        ms.grad(lambda x, y: loss(model(x), y), None, model.trainable_params())(data, label)
        debugger.stop()
        debugger.step()
    dump = dump_of(2)
    functions = ["Functional.cross_entropy.0.forward", "Functional.cross_entropy.0.backward"]
    assert dump.names("Functional.cross_entropy") == functions
    primitives = [f"Primitive.matmul.MatMul.{n}.{way}" for n, way in _calls(2)]
    assert sorted(dump.names("Primitive.matmul")) == (sorted(primitives) if gives_model else [])
    assert dump.json("construct.json") == {}  # as the guide says of L1
    exps = np.exp(file_of(dump, "Functional.cross_entropy.0.forward.input.0"))
    shares = exps / exps.sum(1, keepdims=True) - np.eye(3, dtype=np.float32)[LABELS[2]]
    found = file_of(dump, "Functional.cross_entropy.0.backward.output.0")
    np.testing.assert_allclose(found, shares / 2, rtol=1e-5, atol=1e-6)


def _calls(n: int) -> list[tuple[int, str]]:
    return [(call, way) for call in range(n) for way in ("forward", "backward")]


def test_l1_under_the_high_level_api_without_start():
    debugger = PrecisionDebugger(config_path=config(level="L1", step=[1]))
    model = Network()
    trainer = Model(model, nn.CrossEntropyLoss(), nn.SGD(model.trainable_params(), 0.1))
    trainer.train(1, dataset(), callbacks=[MsprobeStep(debugger)])
    assert steps() == ["step1"]
    assert "Functional.cross_entropy.0.backward" in dump_of(1)


def test_a_block_of_code_in_two_segments():
    """start, stop, start, stop, backward, step: forward and backward of what lies between, and nothing else."""
    debugger = PrecisionDebugger(config_path=config(level="mix"))
    model = Network()

    def forward(data, label):
        debugger.start(model)
        hidden = model.A(data)
        debugger.stop()
        hidden = ops.tanh(hidden)
        debugger.start(model)
        output = model.head(hidden)
        debugger.stop()
        return ops.cross_entropy(output, label)

    for data, label in loader():
        ms.value_and_grad(forward, None, model.trainable_params())(data, label)
        debugger.step()
    for step in range(3):
        dump = dump_of(step)
        assert dump.names("tanh") == dump.names("cross_entropy") == []
        assert {*_cells_of("A.0", "Dense"), *_cells_of("head", "Dense")} <= set(dump.data)
        assert sorted(dump.names("Primitive.matmul")) == sorted(
            f"Primitive.matmul.MatMul.{n}.{way}" for n, way in _calls(2)
        )
        gradient = file_of(dump, "Cell.head.Dense.backward.0.input.0")
        np.testing.assert_allclose(
            file_of(dump, "Cell.head.Dense.parameters_grad.0.weight"),
            gradient.T @ file_of(dump, "Cell.head.Dense.forward.0.input.0"),
            rtol=1e-5,
            atol=1e-6,
        )


class Generator(nn.Cell):
    """Says the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Dense(4, 7)

    def construct(self, tokens):
        return self.head(self.embedding(tokens))[:, -1]

    def generate(self, tokens, n_tokens):
        for _ in range(n_tokens):
            found = ops.argmax(self(tokens), -1).reshape((1, 1)).astype(ms.int32)
            tokens = ops.cat((tokens, found), 1)
        return tokens


def test_token_range_of_a_model_that_generates():
    seed_all()
    debugger = PrecisionDebugger(
        config_path=config(level="L0", dump_path="elsewhere"), dump_path="./dump_path"
    )
    model = Generator()
    debugger.start(model=model, token_range=[1, 3])
    output = model.generate(Tensor([[1, 2, 3]], ms.int32), 6)
    debugger.stop()
    debugger.step()
    dump = dump_of()
    heads = dump.names("Cell.head.Dense.forward")
    assert heads == [f"Cell.head.Dense.forward.{n}" for n in range(3)]
    for n in range(3):  # the prompt has three tokens and is call 0, which is before the range
        found = file_of(dump, f"Cell.embedding.Embedding.forward.{n}.input.0")
        np.testing.assert_array_equal(found, output.asnumpy()[:, : 4 + n])
    assert not Path("elsewhere").exists()


# ------------------------------------------------------------------ kernels

KERNELS = """
import json
import os
import mindspore as ms, numpy as np
from mindspore import Tensor, nn, ops
from mindspore.train import Model
from windtunnel.mindspore import PrecisionDebugger
ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
debugger = PrecisionDebugger(config_path="./config.json")
debugger.start()

class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(2, 2, weight_init="ones", bias_init="ones")
    @ms.jit
    def construct(self, x):
        return ops.tanh(self.fc(x))

class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.head = nn.Dense(2, 1, weight_init="ones", bias_init="zeros")
    def construct(self, x):
        return self.head(self.block(x))

x, y = np.array([[0.5, -2.0]], np.float32), np.array([[1.0]], np.float32)
model = Network()
ms.grad(model)(Tensor(x))                                        # step 0: no high-level API, PyNative
debugger.step()
debugger.start()

rows = lambda: ms.dataset.NumpySlicesDataset({"x": x, "y": y}).batch(1)
trainer = Model(model, nn.MSELoss(), nn.SGD(model.trainable_params(), 0.5))
trainer.train(1, rows())                                          # step 1: the high-level API, PyNative
debugger.step()
ms.set_context(mode=ms.GRAPH_MODE)
debugger.start()
static = nn.Dense(2, 1, weight_init="ones", bias_init="zeros")
Model(static, nn.MSELoss(), nn.SGD(static.trainable_params(), 0.5)).train(1, rows())  # step 2: a static graph
debugger.stop()
debugger.step()
"""


def test_l2_in_both_modes_with_and_without_the_high_level_api():
    """start() before the model is made. Dynamic code: Kernel entries. Compiled code: MindSpore's own dump."""
    config(level="L2", task="tensor")
    told = _run_file(KERNELS)
    assert "kernels of compiled code are in" in told
    x = np.array([[0.5, -2.0]], np.float32)
    hidden = np.tanh(x.sum() + 1.0) * np.ones((1, 2), np.float32)
    for step in (0, 1):
        dump = dump_of(step, "proc*")
        assert "Kernel.MatMul.0.forward" in dump
        np.testing.assert_allclose(file_of(dump, "Kernel.MatMul.0.forward.input.0"), hidden, rtol=1e-6)
        (table,) = _written_by_mindspore(step, "Tanh.*.output.0.*")
        np.testing.assert_allclose(np.load(table), hidden, rtol=1e-6)
        assert _written_by_mindspore(step, "TanhGrad.*.output.0.*")  # backward of compiled code
    (last,) = _written_by_mindspore(2, "MatMul.Default_network-WithLossCell__backbone-Dense_*.output.0.*")
    np.testing.assert_array_equal(np.load(last), [[x.sum()]])
    assert json.loads(Path("dump_path/kernel_kbyk_dump.json").read_text())["common_dump_settings"]


def _run_file(program: str) -> str:
    """In a process of its own: MindSpore reads what to dump once, and compiles only what is in a file."""
    Path("program.py").write_text(program)
    done = run_warm_python(["program.py"], cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    return done.stderr


def _written_by_mindspore(step: int, pattern: str) -> list[Path]:
    return list(Path("dump_path").glob(f"rank_0/Net/*/{step}/{pattern}"))


def test_l2_at_o2_is_set_up_for_ascend_and_told(monkeypatch, caplog):
    """Whole graphs are CANN's: what MindSpore reads there is written, and one sentence says so."""
    monkeypatch.delenv("MINDSPORE_DUMP_CONFIG", raising=False)
    monkeypatch.setattr("windtunnel.probe.mindspore.graph.kernels.jit_level", lambda: "O2")
    ms.set_context(mode=ms.GRAPH_MODE)
    debugger = PrecisionDebugger(config_path=config(level="L2", step=[0, "2-3"], tensor={"list": ["MatMul"]}))
    debugger.start()
    debugger.stop()
    debugger.step()
    written = Path("dump_path/kernel_graph_dump.json").resolve()
    assert os.environ["MINDSPORE_DUMP_CONFIG"] == str(written)
    assert [path.name for path in written.parent.iterdir()] == [written.name]  # no empty folder of a step
    settings = json.loads(written.read_text())["common_dump_settings"]
    assert (settings["iteration"], settings["kernels"], settings["saved_data"]) == (
        "0|2-3",
        ["MatMul"],
        "tensor",
    )
    assert f"configured in {written}; at jit level O2 only an Ascend device writes it" in caplog.text
    debugger.close()
    assert "MINDSPORE_DUMP_CONFIG" not in os.environ


# ------------------------------------------------------------------ files and names


class Convolutions(nn.Cell):
    """Has a part for every prefix of the guide's table that needs no other process."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 3, 3, pad_mode="same", has_bias=True)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(3, 4, 3, pad_mode="valid", has_bias=True)
        self.conv2d = ops.Conv2D(4, 1)
        self.kernel = ms.Parameter(Tensor(np.ones((4, 4, 1, 1), np.float32)), name="kernel")

    def construct(self, x):
        x = self.conv2(self.relu(self.conv1(x)))
        low, high = ops.split(self.conv2d(x, self.kernel), 2, 1)
        x = ops.cat([mint.abs(low), mint.nn.functional.relu(high)], 1)
        return halved(x + 1.0)


@ms.jit
def halved(x):
    return ops.mul(x, 0.5)


def test_the_tree_of_dynamic_graphs_and_every_prefix():
    """Folders, files, and names of tensors as in the guide's tree."""
    debugger = PrecisionDebugger(config_path=config(level="mix"))
    model = Convolutions()
    x = Tensor(np.random.RandomState(2).randn(1, 2, 5, 5).astype(np.float32))
    debugger.start(model)
    ms.grad(lambda x: model(x).sum(), None, model.trainable_params())(x)
    debugger.stop()
    debugger.step()
    dump = dump_of()
    files = ["construct.json", "dump.json", "dump_tensor_data", "stack.json"]
    assert sorted(path.name for path in dump.folder.iterdir()) == files
    tensors = {path.name for path in (dump.folder / "dump_tensor_data").iterdir()}
    assert {
        "MintFunctional.relu.0.backward.input.0.npy",
        "Mint.abs.0.forward.input.0.npy",
        "Functional.split.0.forward.input.0.npy",
        "Functional.split.0.forward.output.1.npy",
        "Functional.cat.0.forward.input.0.1.npy",  # the second of a list that is the first argument
        "Tensor.__add__.0.forward.output.0.npy",
        "Jit.halved.0.forward.input.0.npy",
        "Primitive.conv2d.Conv2D.2.forward.input.0.npy",  # 0 and 1 are those of conv1 and conv2
        "Cell.conv1.Conv2d.forward.0.parameters.weight.npy",
        "Cell.conv1.Conv2d.parameters_grad.0.weight.npy",
        "Cell.relu.ReLU.forward.0.input.0.npy",
    } <= tensors
    named = {
        item["data_name"]
        for entry in dump.data.values()
        for item in _elements(entry)
        if item.get("type") == "mindspore.Tensor"
    }
    assert named == tensors
    np.testing.assert_array_equal(
        file_of(dump, "Mint.abs.0.forward.output.0"), np.abs(file_of(dump, "Mint.abs.0.forward.input.0"))
    )
    np.testing.assert_array_equal(
        file_of(dump, "Jit.halved.0.forward.output.0"), file_of(dump, "Tensor.__add__.0.forward.output.0") / 2
    )


def _elements(value):
    if isinstance(value, dict) and "type" in value:
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _elements(item)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_the_shape_of_dump_json(level):
    """The Conv2d and the relu of the guide: which keys there are, in which order, and what the figures are."""
    debugger = PrecisionDebugger(config_path=config(level=level))
    model = nn.SequentialCell()
    model.insert_child_to_cell("conv2", nn.Conv2d(2, 3, 3, pad_mode="same", has_bias=True))
    x = Tensor(np.random.RandomState(3).randn(2, 2, 4, 4).astype(np.float32))
    debugger.start(model)
    ms.grad(lambda x: (ops.relu(model.conv2(x)) ** 2).sum(), 0, model.trainable_params())(x)
    debugger.stop()
    debugger.step()
    dump = dump_of()
    keys = ["task", "level", "framework", "dump_data_dir"]
    expected = ["tensor", level, "mindspore", str((dump.folder / "dump_tensor_data").resolve())]
    assert [dump.header[key] for key in keys] == expected
    assert list(dump.header)[:4] == keys
    bodies = {}
    if level in ("L0", "mix"):
        cell = "Cell.conv2.Conv2d"
        bodies |= {
            f"{cell}.forward.0": ["input_args", "input_kwargs", "output", "parameters"],
            f"{cell}.parameters_grad.0": ["weight", "bias"],
            f"{cell}.backward.0": ["input", "output"],
        }
        assert list(dump[f"{cell}.forward.0"]["parameters"]) == ["weight", "bias"]
    if level in ("L1", "mix"):
        bodies |= {
            "Functional.relu.0.forward": ["input_args", "input_kwargs", "output"],
            "Functional.relu.0.backward": ["input", "output"],
        }
    assert set(bodies) <= set(dump.data)
    assert any(name.startswith("Cell") for name in dump.data) is (level != "L1")
    for name, body in bodies.items():
        found = list(dump[name])
        assert sorted(found) == sorted(body) if "parameters_grad" in name else found == body
        for element in _elements(dump[name]):
            value = np.load(dump.folder / "dump_tensor_data" / element["data_name"])
            assert list(element)[:8] == [
                *("type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "data_name")
            ]
            assert (element["type"], element["dtype"], element["shape"]) == (
                *("mindspore.Tensor", "Float32"),
                list(value.shape),
            )
            figures = value.max(), value.min(), value.mean(dtype=np.float64), np.linalg.norm(value)
            assert [element[key] for key in ("Max", "Min", "Mean", "Norm")] == pytest.approx(
                figures, rel=1e-5, abs=1e-7
            )


class Compiled(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.last = nn.Dense(4, 2)

    def construct(self, x):
        return self.last(self.block(x))


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)

    @ms.jit
    def construct(self, x):
        return ops.tanh(self.fc(x))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_the_tree_of_compiled_cells(level):
    """graph/ and pynative/, each with steps and processes; the decorated cell is in both."""
    debugger = PrecisionDebugger(config_path=config(level=level))
    model = Compiled()
    for data, _ in loader()[:2]:
        debugger.start(model, rank_id=0)
        ms.grad(lambda x: model(x).sum(), None, model.trainable_params())(data)
        debugger.stop()
        debugger.step()
    assert steps() == ["graph", "pynative"]
    for step in (0, 1):
        graph, dynamic = (Dump(Path(f"dump_path/{area}/step{step}/rank0")) for area in ("graph", "pynative"))
        assert "Cell.block.fc.Dense.parameters_grad.0" in graph
        assert "Cell.block.fc.Dense.forward.0" not in dynamic
        assert "Cell.last.Dense.forward.0" not in graph
        for name in ("Cell.block.Block.forward.0.output.0", "Cell.block.Block.forward.0.input.0"):
            np.testing.assert_array_equal(file_of(graph, name), file_of(dynamic, name))
        assert (dynamic.names("Primitive.matmul") != []) is (level == "mix")
