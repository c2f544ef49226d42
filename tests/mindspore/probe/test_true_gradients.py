"""The gradients of a call are those of its inputs through this call, in the order of its arguments."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

from tests.mindspore.probe.probing import make_debugger, read_dump

A = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
B = np.array([[1.0, -1.0], [0.5, 2.0], [-2.0, 1.0]], np.float32)


def _dump(folder, function, *arrays, model=None, level="L1"):
    debugger = make_debugger(folder, level=level, task="tensor")
    debugger.start(model)
    ms.grad(function, grad_position=tuple(range(len(arrays))))(*map(Tensor, arrays))
    debugger.stop()
    debugger.step()
    assert debugger.collector.n_errors == 0
    debugger.close()
    return read_dump(folder)


def _equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-5)


def test_gradients_stand_in_the_order_of_the_arguments(tmp_path):
    dump = _dump(tmp_path, lambda a, b: ops.matmul(a, b).sum(), A, B)
    ones = np.ones((2, 2), np.float32)
    _equal(dump.arrays("Functional.matmul.0.backward", "input"), [ones])
    _equal(dump.arrays("Functional.matmul.0.backward", "output"), [ones @ B.T, A.T @ ones])


def test_a_primitive_has_them_in_this_order_too(tmp_path):
    model = nn.CellList([nn.Dense(3, 2, has_bias=False)])
    weight = model[0].weight
    weight.set_data(Tensor(B.T.copy()))
    debugger = make_debugger(tmp_path, level="L1", task="tensor")
    debugger.start(model)
    ms.grad(lambda a: model[0](a).sum(), 0, ms.ParameterTuple([weight]))(Tensor(A))
    debugger.stop()
    debugger.step()
    dump = read_dump(tmp_path)
    ones = np.ones((2, 2), np.float32)
    _equal(dump.arrays("Primitive.matmul.MatMul.0.backward", "output"), [ones @ B.T, ones.T @ A])


def test_only_what_comes_through_the_call_itself(tmp_path):
    """x goes into three calls; a hook on x would see the sum of all."""
    dump = _dump(tmp_path, lambda x: (ops.sin(x) + ops.cos(x) + x * 3.0).sum(), A)
    _equal(dump.arrays("Functional.sin.0.backward", "output"), [np.cos(A)])
    _equal(dump.arrays("Functional.cos.0.backward", "output"), [-np.sin(A)])
    _equal(dump.arrays("Tensor.__mul__.0.backward", "output"), [np.full_like(A, 3.0)])


def test_integers_have_a_place_and_no_gradient(tmp_path):
    labels = Tensor(np.array([0, 2], np.int32))
    dump = _dump(tmp_path, lambda x: ops.cross_entropy(x, labels), A)
    soft = np.exp(A) / np.exp(A).sum(1, keepdims=True)
    hot = np.eye(3, dtype=np.float32)[[0, 2]]
    _equal(dump.arrays("Functional.cross_entropy.0.backward", "output"), [(soft - hot) / 2, None])


def test_tensors_in_lists_have_their_gradients(tmp_path):
    dump = _dump(tmp_path, lambda a, b: (mint.cat((a, b), dim=0) * Tensor(np.float32(2.0))).sum(), A, A)
    _equal(dump.arrays("Mint.cat.0.backward", "output"), [np.full_like(A, 2.0)] * 2)


def test_outputs_that_are_not_used_have_no_gradient(tmp_path):
    dump = _dump(tmp_path, lambda x: mint.split(x, 1, dim=0)[1].sum(), A)
    entry = dump["Mint.split.0.backward"]
    (found,) = dump.arrays("Mint.split.0.backward", "output")
    _equal([found], [np.array([[0, 0, 0], [1, 1, 1]], np.float32)])
    assert len(entry["input"]) == 2


def test_a_cell_in_a_cell_and_a_shared_cell(tmp_path):
    class Square(nn.Cell):
        def construct(self, x):
            return x * x

    class Twice(nn.Cell):
        def __init__(self):
            super().__init__()
            self.inner = Square()

        def construct(self, x):
            return self.inner(self.inner(x)) * 3.0

    model = nn.CellList([Twice()])
    dump = _dump(tmp_path, lambda x: model[0](x).sum(), A, model=model, level="L0")
    _equal(dump.arrays("Cell.0.inner.Square.backward.1", "input"), [np.full_like(A, 3.0)])
    _equal(dump.arrays("Cell.0.inner.Square.backward.1", "output"), [6.0 * A**2])
    _equal(dump.arrays("Cell.0.inner.Square.backward.0", "output"), [12.0 * A**3])
    _equal(dump.arrays("Cell.0.Twice.backward.0", "input"), [np.ones_like(A)])
    _equal(dump.arrays("Cell.0.Twice.backward.0", "output"), [12.0 * A**3])
    assert list(dump.data)[-1] == "Cell.0.Twice.backward.0"


def test_gradients_of_several_backwards_are_numbered(tmp_path):
    layer = nn.Dense(3, 2, has_bias=False)
    model = nn.CellList([layer])
    gradient = ms.grad(lambda x: layer(x).sum(), None, ms.ParameterTuple([layer.weight]))
    debugger = make_debugger(tmp_path, level="L0", task="tensor")
    debugger.start(model)
    for scale in (1.0, 2.0):
        gradient(Tensor(A * np.float32(scale)))
    debugger.stop()
    debugger.step()
    dump = read_dump(tmp_path)
    for number, scale in enumerate((1.0, 2.0)):
        entry = f"Cell.0.Dense.parameters_grad.{number}"
        found = np.load(dump.folder / "dump_tensor_data" / dump[entry]["weight"][0]["data_name"])
        np.testing.assert_allclose(found, np.tile(A.sum(0) * scale, (2, 1)), rtol=1e-6)


def test_without_gradients_there_is_no_backward(tmp_path):
    debugger = make_debugger(tmp_path, task="statistics")
    debugger.start()
    ops.matmul(Tensor(A), Tensor(B))
    debugger.stop()
    debugger.step()
    assert read_dump(tmp_path).names() == ["Functional.matmul.0.forward"]


def test_a_gradient_of_a_gradient_is_a_second_pass(tmp_path):
    # What the first pass hands on is made of the call's own output, so the second runs through the call once more.
    dump = _dump(tmp_path, lambda x: ms.grad(lambda z: ops.tanh(z).sum())(x).sum(), 0.1 * A)
    y = np.tanh(0.1 * A)
    _equal(dump.arrays("Functional.tanh.0.backward", "input"), [np.ones_like(A)])
    _equal(dump.arrays("Functional.tanh.0.backward", "output"), [1 - y**2])
    _equal(dump.arrays("Functional.tanh.0.pass2.backward", "input"), [-2 * y])
    _equal(dump.arrays("Functional.tanh.0.pass2.backward", "output"), [-2 * y * (1 - y**2)])


def test_the_call_before_one_in_place_has_its_backward(tmp_path):
    """`copy_`, because `add_`, `mul_` and `sub_` change nothing on MindSpore 2.10's CPU, with or without the probe."""

    def function(x):
        found = ops.sin(x)
        found.copy_(found * 2.0)
        return (found * found).sum()

    dump = _dump(tmp_path, function, A)
    _equal(dump.arrays("Tensor.__mul__.1.forward", "input_args"), [2 * np.sin(A)] * 2)
    _equal(dump.arrays("Functional.sin.0.backward", "input"), [8 * np.sin(A)])
    _equal(dump.arrays("Functional.sin.0.backward", "output"), [8 * np.sin(A) * np.cos(A)])
