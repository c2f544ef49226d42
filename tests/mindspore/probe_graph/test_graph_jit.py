"""mindspore.jit in PyNative mode: cells in graph/ and pynative/, functions as one API, bytecode as dynamic code."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from tests.mindspore.probe_graph.networks import Dump, batch, mode, perceptron, train, watched


@pytest.fixture(autouse=True)
def pynative_mode():
    with mode(ms.PYNATIVE_MODE):
        yield


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(4, 4)
        self.act = nn.Tanh()

    @ms.jit
    def construct(self, x):
        return x + self.act(self.dense(x))


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.last = nn.Dense(4, 2)

    def construct(self, x):
        return self.last(self.block(x))


def test_a_decorated_cell_is_in_both_folders_and_its_cells_in_graph(tmp_path):
    x, losses = batch(0, 3, 4), []
    for is_watched in (False, True):
        ms.set_seed(2)
        network = Network()
        weight = network.block.dense.weight.asnumpy().copy()
        bias = network.block.dense.bias.asnumpy().copy()
        if is_watched:
            with watched(tmp_path, task="tensor", level="L0") as debugger:
                losses.append(train(network, debugger, (x,), n_steps=2))
        else:
            losses.append(train(network, None, (x,), n_steps=2))
    assert losses[0] == losses[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph", "pynative"]
    graph, dynamic = Dump(tmp_path / "graph"), Dump(tmp_path / "pynative")
    assert list(graph.entries) == [
        *("Cell.block.dense.Dense.forward.0", "Cell.block.act.Tanh.forward.0", "Cell.block.Block.forward.0"),
        *("Cell.block.act.Tanh.backward.0", "Cell.block.dense.Dense.parameters_grad.0"),
        *("Cell.block.dense.Dense.backward.0", "Cell.block.Block.backward.0"),
    ]
    assert graph.parents["Cell.block.act.Tanh.backward.0"] == "Cell.block.Block.backward.0"
    cells = {name.partition(".forward.")[0] for name in dynamic.entries if ".forward." in name}
    assert cells == {"Cell.block.Block", "Cell.last.Dense"}
    h = x.asnumpy() @ weight.T + bias
    out = x.asnumpy() + np.tanh(h)
    for dump in (graph, dynamic):
        np.testing.assert_allclose(
            dump.tensor("Cell.block.Block.forward.0.output.0"), out, rtol=1e-5, atol=1e-6
        )
    dout = graph.tensor("Cell.block.Block.backward.0.input.0")
    np.testing.assert_array_equal(dout, dynamic.tensor("Cell.last.Dense.backward.0.output.0"))
    dh = dout * (1 - np.tanh(h) ** 2)
    found = graph.tensor("Cell.block.dense.Dense.parameters_grad.0.weight")
    np.testing.assert_allclose(found, dh.T @ x.asnumpy(), rtol=1e-5, atol=1e-6)


def test_cells_inside_a_compiled_function_are_collected(tmp_path):
    network, x = perceptron(), batch(0, 2, 4)

    def loss(x):
        return (network(x) ** 2).sum()

    gradients = ms.value_and_grad(loss, None, network.trainable_params())

    @ms.jit
    def step(x):
        return gradients(x)

    with watched(tmp_path, level="L0") as debugger:
        for _ in range(2):
            debugger.start(network)
            step(x)
            debugger.step()
    for number in range(2):
        entries = list(Dump(tmp_path / "graph", number).entries)
        assert entries[:3] == [f"Cell.{name}.forward.0" for name in ("first.Dense", "act.ReLU", "last.Dense")]
        assert len(entries) == 8


@ms.jit
def scaled(x, factor):
    return ops.relu(x) * factor


@ms.jit(capture_mode="bytecode")
def by_bytecode(x):
    return ops.relu(x) + 1


def test_at_l1_a_compiled_function_is_one_api(tmp_path):
    x = Tensor([[-1.0, 2.0]], ms.float32)
    with watched(tmp_path, task="tensor", level="L1") as debugger:
        debugger.start()
        scaled(x, 3.0)
        scaled(x, 3.0)
        Block()(batch(0, 1, 4))
        debugger.stop()
        debugger.step()
    dump = Dump(tmp_path)
    assert list(dump.entries) == ["Jit.scaled.0.forward", "Jit.scaled.1.forward", "Jit.Block.0.forward"]
    assert dump.entries["Jit.scaled.0.forward"]["input_args"][1] == {"type": "float", "value": 3.0}
    np.testing.assert_array_equal(dump.tensor("Jit.scaled.1.forward.output.0"), [[0.0, 6.0]])
    np.testing.assert_array_equal(dump.tensor("Jit.Block.0.forward.input.0"), batch(0, 1, 4).asnumpy())


def test_at_l1_captured_bytecode_is_dynamic_code(tmp_path):
    x = Tensor([[-1.0, 2.0]], ms.float32)
    with watched(tmp_path, level="L1") as debugger:
        debugger.start()
        by_bytecode(x)
        debugger.stop()
        debugger.step()
    assert list(Dump(tmp_path).entries) == ["Functional.relu.0.forward", "Tensor.__add__.0.forward"]
    np.testing.assert_array_equal(by_bytecode(x).asnumpy(), [[1.0, 3.0]])
