"""Cells inside static graphs: their values, gradients, names and files, and that nothing of the training changes."""

from __future__ import annotations

import zlib

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.train import Model

from tests.mindspore.probe_graph.networks import (
    Attention,
    Dump,
    Shared,
    batch,
    mode,
    perceptron,
    train,
    watched,
)
from windtunnel.probe.mindspore.callbacks import MsprobeStep


@pytest.fixture(autouse=True)
def graph_mode(tmp_path_factory, monkeypatch):
    """Where MindSpore writes what it could not compile is the working folder."""
    monkeypatch.chdir(tmp_path_factory.mktemp("work"))
    with mode(ms.GRAPH_MODE):
        yield


def test_every_value_is_what_numpy_computes(tmp_path):
    network, x = perceptron(), batch(0, 2, 4)
    before = {name: value.asnumpy().copy() for name, value in network.parameters_dict().items()}
    with watched(tmp_path, task="tensor", level="L0") as debugger:
        train(network, debugger, (x,), n_steps=1)
    dump = Dump(tmp_path)
    w1, b1, w2, b2 = (before[name] for name in ("first.weight", "first.bias", "last.weight", "last.bias"))
    h = x.asnumpy() @ w1.T + b1
    a = np.maximum(h, 0)
    y = a @ w2.T + b2
    dy = 2 * y
    da = dy @ w2
    dh = da * (h > 0)
    expected = {
        "Cell.first.Dense.forward.0.input.0": x.asnumpy(),
        "Cell.first.Dense.forward.0.output.0": h,
        "Cell.first.Dense.forward.0.parameters.weight": w1,
        "Cell.first.Dense.forward.0.parameters.bias": b1,
        "Cell.act.ReLU.forward.0.input.0": h,
        "Cell.act.ReLU.forward.0.output.0": a,
        "Cell.last.Dense.forward.0.input.0": a,
        "Cell.last.Dense.forward.0.output.0": y,
        "Cell.last.Dense.forward.0.parameters.weight": w2,
        "Cell.last.Dense.forward.0.parameters.bias": b2,
        "Cell.last.Dense.backward.0.input.0": dy,
        "Cell.last.Dense.backward.0.output.0": da,
        "Cell.act.ReLU.backward.0.input.0": da,
        "Cell.act.ReLU.backward.0.output.0": dh,
        "Cell.first.Dense.backward.0.input.0": dh,
        "Cell.last.Dense.parameters_grad.0.weight": dy.T @ a,
        "Cell.last.Dense.parameters_grad.0.bias": dy.sum(0),
        "Cell.first.Dense.parameters_grad.0.weight": dh.T @ x.asnumpy(),
        "Cell.first.Dense.parameters_grad.0.bias": dh.sum(0),
    }
    assert {path.stem for path in (dump.path / "dump_tensor_data").iterdir()} == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(dump.tensor(name), value, rtol=1e-6, atol=1e-6, err_msg=name)
    assert list(dump.entries) == [
        *("Cell.first.Dense.forward.0", "Cell.act.ReLU.forward.0", "Cell.last.Dense.forward.0"),
        *("Cell.last.Dense.parameters_grad.0", "Cell.last.Dense.backward.0", "Cell.act.ReLU.backward.0"),
        *("Cell.first.Dense.parameters_grad.0", "Cell.first.Dense.backward.0"),
    ]
    element = dump.entries["Cell.last.Dense.forward.0"]["output"][0]
    assert element["type"] == "mindspore.Tensor"
    assert (element["dtype"], element["shape"]) == ("Float32", [2, 2])
    figures = [element[key] for key in ("Max", "Min", "Mean", "Norm")]
    np.testing.assert_allclose(figures, [y.max(), y.min(), y.mean(), np.linalg.norm(y)], rtol=1e-6)
    assert dump.entries["Cell.first.Dense.backward.0"]["output"] == [None]  # nobody asked for that of x


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        pytest.param(Attention, (batch(0, 2, 5, 8),), marks=pytest.mark.thorough),
        (Shared, (batch(0, 2, 4), batch(1, 2, 4))),
    ],
)
def test_names_and_statistics_are_those_of_pynative(tmp_path, make, inputs):
    found = []
    for wanted in (ms.GRAPH_MODE, ms.PYNATIVE_MODE):
        ms.set_seed(3)
        network = make()
        with mode(wanted), watched(tmp_path / str(wanted), level="L0") as debugger:
            network.set_train(False)
            train(network, debugger, inputs, n_steps=1)
        found.append(Dump(tmp_path / str(wanted)))
    graph, dynamic = found
    assert set(graph.entries) == set(dynamic.entries)
    forward = [name for name in dynamic.entries if ".forward." in name]
    assert [name for name in graph.entries if ".forward." in name] == forward
    assert {name: graph.parents[name] for name in forward} == {
        name: dynamic.parents[name] for name in forward
    }
    for name, entry in dynamic.entries.items():
        assert set(graph.entries[name]) == set(entry), name
        if name == "Cell.norm.LayerNorm.backward.0":  # a graph computes no gradient that nobody asks for
            entry["output"] = [None]
        for key in entry:
            _same(graph.entries[name][key], entry[key], f"{name} {key}")


def _same(graph, dynamic, where) -> None:
    if isinstance(dynamic, list):
        assert len(graph) == len(dynamic), where
        for index, (mine, theirs) in enumerate(zip(graph, dynamic, strict=True)):
            _same(mine, theirs, f"{where}.{index}")
    elif isinstance(dynamic, dict):
        assert set(graph) == set(dynamic), where
        for key, value in dynamic.items():
            _same(graph[key], value, f"{where}.{key}")
    elif isinstance(dynamic, float):
        assert graph == pytest.approx(dynamic, rel=1e-5, abs=1e-6), where
    else:
        assert graph == dynamic, where


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (Attention, (batch(0, 2, 5, 8),)),
        pytest.param(Shared, (batch(0, 2, 4), batch(1, 2, 4)), marks=pytest.mark.thorough),
    ],
)
def test_losses_keep_every_bit(tmp_path, make, inputs):
    losses = []
    for is_watched in (False, True):
        ms.set_seed(5)
        network = make()
        if is_watched:
            with watched(tmp_path, level="L0") as debugger:
                losses.append(train(network, debugger, inputs, n_steps=4))
        else:
            losses.append(train(network, None, inputs, n_steps=4))
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 4


def test_only_wanted_steps_though_the_first_one_compiles(tmp_path):
    with watched(tmp_path, level="L0", step=[1, 3]) as debugger:
        train(perceptron(), debugger, (batch(0, 2, 4),), n_steps=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step1", "step3"]
    assert len(Dump(tmp_path, 3).entries) == 8


def test_calls_of_one_cell_are_numbered_as_the_program_makes_them(tmp_path):
    inputs = batch(0, 2, 4), batch(1, 2, 4)
    with watched(tmp_path, task="tensor", level="L0") as debugger:
        train(Shared(), debugger, inputs, n_steps=1)
    dump = Dump(tmp_path)
    for number, x in enumerate((inputs[0], inputs[1], inputs[0])):
        name = f"Cell.tower.0.Dense.forward.{number}"
        np.testing.assert_array_equal(dump.tensor(f"{name}.input.0"), x.asnumpy())
        assert dump.parents[name] == f"Cell.tower.SequentialCell.forward.{number}"
        # tanh' = 1 - tanh², so a gradient that belonged to another call would not fit this one's output
        out = dump.tensor(f"Cell.tower.1.Tanh.forward.{number}.output.0")
        dout = dump.tensor(f"Cell.tower.1.Tanh.backward.{number}.input.0")
        dx = dump.tensor(f"Cell.tower.1.Tanh.backward.{number}.output.0")
        np.testing.assert_allclose(dx, dout * (1 - out**2), rtol=1e-5, atol=1e-7)
    twice = dump.tensor("Cell.tower.1.Tanh.backward.0.input.0")
    np.testing.assert_allclose(twice, 2 * dump.tensor("Cell.tower.1.Tanh.backward.2.input.0"), rtol=1e-6)


class Mixed(nn.Cell):
    """Arguments of every kind."""

    def construct(self, pair, scale=1.0, *, ids=None, name="x"):
        a, b = pair
        return {"sum": a * scale + b.astype(ms.float32)}, [ids, (a,)]


class Caller(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.mixed = Mixed()

    def construct(self, x, ids):
        found, rest = self.mixed((x, x.astype(ms.bfloat16)), 2.0, ids=ids, name="left")
        return found["sum"].sum() + rest[1][0].sum()


def test_arguments_of_every_kind_have_their_places(tmp_path):
    x, ids = Tensor([[1.0, 2.0]], ms.float32), Tensor([3, 4], ms.int32)
    network = Caller()
    with watched(tmp_path, task="tensor", level="L0") as debugger:
        debugger.start(network)
        ms.grad(network)(x, ids)
        debugger.step()
    dump = Dump(tmp_path)
    entry = dump.entries["Cell.mixed.Mixed.forward.0"]
    (a, b), scale = entry["input_args"]
    assert (a["dtype"], b["dtype"]) == ("Float32", "BFloat16")
    assert (b["Max"], b["data_name"]) == (2.0, "Cell.mixed.Mixed.forward.0.input.0.1.npy")
    assert scale == {"type": "float", "value": 2.0}
    assert entry["input_kwargs"]["name"] == {"type": "str", "value": "left"}
    assert entry["input_kwargs"]["ids"]["dtype"] == "Int32"
    found, (again, nested) = entry["output"]
    assert found["sum"]["Norm"] == pytest.approx(np.sqrt(9 + 36))
    assert (again["Max"], nested[0]["Max"]) == (4, 2.0)
    gradients = dump.entries["Cell.mixed.Mixed.backward.0"]
    assert [None if item is None else item["dtype"] for item in gradients["output"]] == [
        "Float32",
        "BFloat16",
        None,
    ]
    np.testing.assert_array_equal(dump.tensor("Cell.mixed.Mixed.backward.0.output.0"), [[3.0, 3.0]])


def test_model_train_by_the_callback(tmp_path):
    data = [(batch(seed, 2, 4).asnumpy(), batch(seed + 9, 2, 2).asnumpy()) for seed in range(3)]
    network = perceptron()
    with watched(tmp_path, task="tensor", level="L0", step=[1, 2]) as debugger:
        debugger.start(network)
        rows = ms.dataset.GeneratorDataset(data, ["x", "y"], shuffle=False)
        trainer = Model(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
        trainer.train(1, rows, callbacks=[MsprobeStep(debugger)], dataset_sink_mode=False)
    for step in (1, 2):
        dump = Dump(tmp_path, step)
        np.testing.assert_array_equal(dump.tensor("Cell.first.Dense.forward.0.input.0"), data[step][0])
        assert "Cell.first.Dense.backward.0" in dump.entries
    assert not (tmp_path / "step0").exists()


def test_a_list_of_models_is_numbered(tmp_path):
    network = perceptron()
    with watched(tmp_path, level="L0") as debugger:
        train(
            network, debugger, (batch(0, 2, 4),), n_steps=1, model=[nn.SequentialCell(network.act), network]
        )
    assert "Cell.0.0.ReLU.forward.0" in Dump(tmp_path).entries  # a shared cell keeps its first name
    assert "Cell.1.last.Dense.forward.0" in Dump(tmp_path).entries


def test_checksums_and_filters(tmp_path):
    config = {
        "task": "statistics",
        "level": "L0",
        "statistics": {
            "summary_mode": "md5",
            "data_mode": ["backward"],
            "list": ["Cell.last"],
            "tensor_list": ["last"],
        },
    }
    with watched(tmp_path, config=config) as debugger:
        train(perceptron(), debugger, (batch(0, 2, 4),), n_steps=1)
    dump = Dump(tmp_path)
    assert list(dump.entries) == ["Cell.last.Dense.parameters_grad.0", "Cell.last.Dense.backward.0"]
    element = dump.entries["Cell.last.Dense.backward.0"]["output"][0]
    data = dump.tensor("Cell.last.Dense.backward.0.output.0").tobytes()
    assert element["md5"] == f"{zlib.crc32(data):08x}"


def test_structure_only(tmp_path):
    with watched(tmp_path, task="structure", level="L0") as debugger:
        train(perceptron(), debugger, (batch(0, 2, 4),), n_steps=1)
    dump = Dump(tmp_path)
    assert dump.entries == {}
    assert dump.parents["Cell.first.Dense.backward.0"] is None
    assert list(dump.parents)[:3] == [
        f"Cell.{name}.forward.0" for name in ("first.Dense", "act.ReLU", "last.Dense")
    ]


def test_what_was_compiled_before_start_is_reported(tmp_path, caplog):
    network, x = perceptron(), batch(0, 2, 4)
    network(x)
    with watched(tmp_path, level="L0") as debugger:
        debugger.start(network)
        network(x)
        debugger.step()
    assert "call start(model) before the first step" in caplog.text


def test_what_does_not_compile_with_us_compiles_without(tmp_path, monkeypatch, caplog):
    def broken(inner, *_):
        def construct(self, *args):
            return inner(*args).no_such_thing

        return construct

    monkeypatch.setattr("windtunnel.probe.mindspore.graph.graphs.tapped_construct", broken)
    with watched(tmp_path, level="L0") as debugger:
        losses = train(perceptron(), debugger, (batch(0, 2, 4),), n_steps=2)
    assert losses == train(perceptron(), None, (batch(0, 2, 4),), n_steps=2)
    assert "no_such_thing" in caplog.text


class Recomputed(nn.Cell):
    """For which MindSpore 2.10 makes a graph with a cycle once gradients are noted in it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.SequentialCell(nn.Dense(8, 8), nn.LayerNorm((8,)))
        self.blocks.recompute()
        self.last = nn.BatchNorm1d(8)

    def construct(self, x):
        return self.last(self.blocks(x).reshape(-1, 8))


def test_what_compiles_without_gradients_alone_has_its_forward(tmp_path, caplog):
    losses = []
    for is_watched in (False, True):
        ms.set_seed(4)
        network = Recomputed()
        if is_watched:
            with watched(tmp_path, level="L0") as debugger:
                losses.append(train(network, debugger, (batch(0, 1, 3, 8),), n_steps=2))
        else:
            losses.append(train(network, None, (batch(0, 1, 3, 8),), n_steps=2))
    assert losses[0] == losses[1]
    assert "Graph cycle exists" in caplog.text
    assert "call start(model) before" not in caplog.text
    assert list(Dump(tmp_path, 1).entries) == [
        *("Cell.blocks.0.Dense.forward.0", "Cell.blocks.1.LayerNorm.forward.0"),
        *("Cell.blocks.SequentialCell.forward.0", "Cell.last.BatchNorm1d.forward.0"),
    ]


def test_an_error_of_the_program_is_raised_as_ever(tmp_path):
    class Wrong(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(4, 2)

        def construct(self, x):
            return self.dense(x).not_a_method()

    network = Wrong()
    with watched(tmp_path, level="L0") as debugger:
        debugger.start(network)
        with pytest.raises(AttributeError, match="not_a_method"):
            network(batch(0, 2, 4))
        debugger.step()


class Keywords(nn.Cell):
    """Keyword arguments that are tensors, and constants of one kind and another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def construct(self, x):
        return self.layer(x).sum()


def test_a_cell_of_mindspores_with_keywords(tmp_path):
    with watched(tmp_path, level="L0") as debugger:
        train(Keywords(), debugger, (batch(0, 2, 3, 8),), n_steps=1)
    name = "Cell.layer.self_attn.MultiheadAttention.forward.0"
    keywords = Dump(tmp_path).entries[name]["input_kwargs"]
    assert keywords["need_weights"] == {"type": "bool", "value": False}
    assert set(keywords) == {"attn_mask", "key_padding_mask", "need_weights"}


def test_cells_and_compilers_are_left_as_they_were(tmp_path):
    network = perceptron()
    with watched(tmp_path, level="L0") as debugger:
        train(network, debugger, (batch(0, 2, 4),), n_steps=1)
        assert all("construct" not in vars(cell) for _, cell in network.cells_and_names())
    assert type(ms._c_expression.GraphExecutor_.get_instance()).compile.__name__ == "compile"
