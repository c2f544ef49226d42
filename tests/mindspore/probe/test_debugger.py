"""PrecisionDebugger for MindSpore: steps, ranks, filters, points, registered functions, tokens."""

from __future__ import annotations

import json
import logging
import zlib
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore._c_expression import run_backward
from mindspore.graph.api import _pynative_executor

from tests.mindspore.probe.models import build, train_step
from tests.mindspore.probe.probing import make_debugger, probe, read_dump
from windtunnel.errors import UsageError
from windtunnel.mindspore import PrecisionDebugger

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5


def _cells(dump):
    return [name for name in dump.data if name.startswith("Cell.")]


def test_the_door_is_one_object_that_every_file_can_reach(tmp_path):
    with pytest.raises(UsageError, match="before a PrecisionDebugger was created"):
        PrecisionDebugger.start()
    debugger = make_debugger(tmp_path, task="statistics")
    assert PrecisionDebugger() is debugger
    PrecisionDebugger.start()
    ops.relu(Tensor(X))
    PrecisionDebugger.stop()
    PrecisionDebugger.step()
    assert read_dump(tmp_path).names() == ["Functional.relu.0.forward"]


def test_only_wanted_steps_are_collected_and_steps_can_begin_later(tmp_path):
    debugger = make_debugger(tmp_path, task="statistics", step=["7-8", 10])
    debugger.set_init_step(6)
    for _ in range(5):
        with debugger.watch():
            ops.relu(Tensor(X))
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == ["step10", "step7", "step8"]


def test_a_step_that_was_begun_moves_when_its_number_becomes_known(tmp_path):
    debugger = make_debugger(tmp_path, task="tensor")
    debugger.start()
    debugger.set_init_step(40)
    ops.relu(Tensor(X))
    debugger.step()
    debugger.close()
    assert [path.name for path in (tmp_path / "dump").iterdir()] == ["step40"]
    dump = read_dump(tmp_path, 40)
    assert np.array_equal(dump.arrays("Functional.relu.0.forward", "output")[0], np.maximum(X, 0))
    assert dump.header["dump_data_dir"] == str(dump.folder / "dump_tensor_data")


def test_rank_id_names_the_folder(tmp_path):
    debugger = make_debugger(tmp_path, task="statistics")
    debugger.start(rank_id=3)
    ops.relu(Tensor(X))
    debugger.step()
    assert [path.name for path in (tmp_path / "dump" / "step0").iterdir()] == ["rank3"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda debugger: debugger.start(), "start() needs a model for level L0"),
        (lambda debugger: debugger.start(3), "start(model) was given int"),
        (lambda debugger: debugger.start([]), "start(model) was given an empty list"),
        (lambda debugger: debugger.start(nn.ReLU(), rank_id=-1), "rank_id -1 is not a rank"),
        (lambda debugger: debugger.start(nn.ReLU(), token_range=[2, 1]), "contains no token"),
        (lambda debugger: debugger.set_init_step(-1), "set_init_step(-1) is not a step"),
    ],
)
def test_wrong_arguments_are_reported_in_a_sentence(tmp_path, call, said):
    debugger = make_debugger(tmp_path, level="L0")
    with pytest.raises(UsageError) as error:
        call(debugger)
    assert said in str(error.value)


def test_a_model_is_remembered_and_lists_of_models_are_numbered(tmp_path):
    models = (nn.SequentialCell(nn.ReLU()), nn.SequentialCell(nn.Tanh(), nn.ReLU()))
    debugger = make_debugger(tmp_path, level="L0", task="statistics")
    for given in (models, None):
        debugger.start(given)
        for model in models:
            model(Tensor(X))
        debugger.stop()
        debugger.step()
    expected = ["Cell.0.0.ReLU.forward.0", "Cell.1.0.Tanh.forward.0", "Cell.1.1.ReLU.forward.0"]
    assert [read_dump(tmp_path, step).names() for step in (0, 1)] == [expected, expected]


def test_a_shared_cell_keeps_its_first_name_and_counts_its_calls(tmp_path):
    layer = nn.Dense(3, 3)
    model = nn.SequentialCell(layer, nn.ReLU(), layer)
    dump = probe(tmp_path, lambda: model(Tensor(X)), model, level="L0", task="statistics")
    assert _cells(dump) == ["Cell.0.Dense.forward.0", "Cell.1.ReLU.forward.0", "Cell.0.Dense.forward.1"]


def test_keywords_of_cells_and_of_functions_are_written_by_name(tmp_path):
    class Scale(nn.Cell):
        def construct(self, x, *, factor):
            return x * factor

    model = nn.CellList([Scale()])
    dump = probe(tmp_path, lambda: model[0](Tensor(X), factor=3.0), model, level="mix", task="statistics")
    assert dump["Cell.0.Scale.forward.0"]["input_kwargs"] == {"factor": {"type": "float", "value": 3.0}}
    assert dump.json("construct.json")["Tensor.__mul__.0.forward"] == "Cell.0.Scale.forward.0"


def test_segments_have_their_backward_though_it_comes_after_stop(tmp_path):
    debugger = make_debugger(tmp_path, task="tensor")

    def forward(x):
        debugger.start()
        first = ops.tanh(x)
        debugger.stop()
        second = ops.exp(first)  # in no segment
        debugger.start()
        third = ops.sin(second)
        debugger.stop()
        return third.sum()

    gradient = ms.grad(forward)(Tensor(X))
    debugger.step()
    debugger.close()
    dump = read_dump(tmp_path)
    forwards = ["Functional.tanh.0.forward", "Functional.sin.0.forward"]
    assert dump.names() == [*forwards, "Functional.sin.0.backward", "Functional.tanh.0.backward"]
    (found,) = dump.arrays("Functional.tanh.0.backward", "output")
    assert np.array_equal(found, gradient.asnumpy())


def test_backward_by_the_engine_itself_is_collected_too(tmp_path):
    """As adapters of torch's style do it: no function is differentiated, the loss is."""
    layer = nn.Dense(3, 2)
    model = nn.SequentialCell(layer)

    def work():
        before = _pynative_executor.grad_flag()
        _pynative_executor.set_grad_flag(True)
        try:
            loss = model(Tensor(X)).sum()
            run_backward((loss,), (Tensor(np.float32(1.0)),), False, False, None)
        finally:
            _pynative_executor.set_grad_flag(before)

    dump = probe(tmp_path, work, model, level="L0")
    assert _cells(dump) == [
        "Cell.0.Dense.forward.0",
        "Cell.0.Dense.parameters_grad.0",
        "Cell.0.Dense.backward.0",
    ]
    weights = dump["Cell.0.Dense.parameters_grad.0"]["weight"][0]["data_name"]
    found = np.load(dump.folder / "dump_tensor_data" / weights)
    assert np.allclose(found, np.tile(X.sum(0), (2, 1)))


def test_grad_operation_and_train_one_step_are_collected(tmp_path):
    program = build("mlp")
    loss = nn.WithLossCell(program.network, program.loss)
    training = nn.TrainOneStepCell(loss, nn.SGD(program.network.trainable_params(), 0.1))
    gradients = ops.GradOperation(get_by_list=True)(
        loss, ms.ParameterTuple(program.network.trainable_params())
    )
    for number, work in enumerate((training, gradients)):
        folder = tmp_path / str(number)
        dump = probe(
            folder,
            lambda work=work: work(*program.inputs, program.labels),
            program.network,
            level="mix",
            task="statistics",
        )
        assert "Cell.first.Dense.parameters_grad.0" in dump
        assert "Functional.cross_entropy.0.backward" in dump
        assert "Cell.first.Dense.backward.0" in dump


def test_points_and_their_gradients(tmp_path):
    debugger = make_debugger(tmp_path, level="debug", task="tensor")

    def forward(x):
        y = x * 3.0
        debugger.save({"y": y, "n": [1, "text"]}, "point")
        debugger.save(y, "alone", save_backward=False)
        return (y * y).sum()

    debugger.start()
    ms.grad(forward)(Tensor(X))
    debugger.stop()
    debugger.step()
    dump = read_dump(tmp_path)
    assert list(dump.data) == ["point.0.debug", "alone.0.debug", "point_grad.0.debug"]
    saved = dump["point_grad.0.debug"]["y"]["data_name"]
    assert np.array_equal(np.load(dump.folder / "dump_tensor_data" / saved), 2 * 3 * X)
    assert dump["point.0.debug"]["n"] == [{"type": "int", "value": 1}, {"type": "str", "value": "text"}]
    assert dump["point_grad.0.debug"]["n"] == [None, None]


def test_points_are_refused_in_a_sentence_elsewhere(tmp_path, caplog):
    debugger = make_debugger(tmp_path, level="L1")
    with caplog.at_level(logging.WARNING):
        debugger.save(Tensor(X), "point")
    assert 'save("point") has no effect at level L1' in caplog.text


def test_registered_functions_are_recorded_and_restored(tmp_path):
    library = SimpleNamespace(__name__="library", fused=lambda x, scale: ops.relu(x) * scale)
    original = library.fused
    debugger = make_debugger(tmp_path)
    debugger.register_custom_api(library, "fused", "Custom")

    def forward(x):
        return library.fused(x, 2.0).sum()

    debugger.start()
    ms.grad(forward)(Tensor(X))
    debugger.stop()
    debugger.step()
    debugger.restore_custom_api(library, "fused")
    assert library.fused is original
    dump = read_dump(tmp_path)
    assert dump.names("Custom") == ["Custom.fused.0.forward", "Custom.fused.0.backward"]
    assert dump.names("relu") == []  # part of the registered function
    assert np.array_equal(dump.arrays("Custom.fused.0.backward", "output")[0], (X > 0) * np.float32(2.0))
    with pytest.raises(UsageError, match="has no attribute 'nothing'"):
        debugger.register_custom_api(library, "nothing")


def test_only_some_tokens_of_a_generate_loop(tmp_path):
    model = nn.SequentialCell(nn.ReLU())
    debugger = make_debugger(tmp_path, level="L0", task="statistics")
    debugger.start(model, token_range=[1, 2])
    for number in range(5):
        model(Tensor(X + np.float32(number)))
    debugger.stop()
    debugger.step()
    dump = read_dump(tmp_path)
    assert [dump[name]["input_args"][0]["Max"] for name in dump.data] == [3.5, 4.5]


def test_list_scope_and_data_mode(tmp_path):
    program = build("mlp")
    step = train_step(program)

    def names(folder, **keys):
        return probe(tmp_path / folder, step, program.network, task="statistics", **keys).names()

    every = names("all", level="mix")
    inside = names("list", level="mix", list=["Cell.norm"])
    assert "Cell.norm.LayerNorm.forward.0" in inside
    assert (
        "Primitive.layer_norm.LayerNorm.0.forward" in inside
    )  # in mix a cell stands for what runs inside it
    assert set(inside) < set(every)
    assert names("api", level="L1", list=["tanh"]) == [
        "Functional.tanh.0.forward",
        "Functional.tanh.0.backward",
    ]
    scope = names("scope", level="L0", scope=["Cell.first.Dense.forward.0", "Cell.norm.LayerNorm.forward.0"])
    forwards = [name for name in scope if ".forward." in name]
    assert forwards == [name for name in every if name in forwards]
    assert forwards[-1] == "Cell.norm.LayerNorm.forward.0"
    backward = names("backward", level="mix", data_mode=["backward"])
    assert backward == [name for name in every if "forward" not in name]


def test_risk_levels(tmp_path):
    x, turned = Tensor(X), Tensor(X.T.copy())

    def work():
        mint.matmul(x, turned)
        x[0]
        ops.relu(x).reshape((3, 2))

    def names(level):
        return probe(tmp_path / level, work, task="statistics", risk_level=level).names()

    matmul, relu, reshape = "Mint.matmul.0.forward", "Functional.relu.0.forward", "Tensor.reshape.0.forward"
    assert names("FOCUS") == [matmul, relu, reshape]
    assert names("CORE") == [matmul]
    assert names("ALL") == [matmul, "Tensor.__getitem__.0.forward", relu, reshape]


def test_structure_has_no_data(tmp_path):
    program = build("mlp")
    dump = probe(tmp_path, train_step(program), program.network, level="mix", task="structure")
    assert dump.data == {}
    parents = dump.json("construct.json")
    assert parents["Primitive.matmul.MatMul.0.forward"] == "Cell.first.Dense.forward.0"
    assert parents["Primitive.matmul.MatMul.0.backward"] == "Cell.first.Dense.backward.0"


def test_summary_modes(tmp_path):
    values = np.array([1.5, -2.0], np.float32)

    def element(mode):
        dump = probe(tmp_path / mode, lambda: ops.relu(Tensor(values)), task="statistics", summary_mode=mode)
        return dump["Functional.relu.0.forward"]["input_args"][0]

    assert element("md5")["md5"] == f"{zlib.crc32(values.tobytes()):08x}"
    xor = element("xor")
    assert xor["md5"] == f"0x{int.from_bytes(values.tobytes(), 'little'):016x}"
    assert "Max" not in xor
    plain = element("statistics")
    assert (plain["Max"], plain["Min"], plain["Mean"], plain["Norm"]) == (1.5, -2.0, -0.25, 2.5)


def test_every_type_is_measured(tmp_path):
    """bfloat16 by its bits, integers and booleans, complex numbers, nothing at all."""
    values = {
        "BFloat16": Tensor(np.array([1.5, -2.0], np.float32)).astype(ms.bfloat16),
        "Float16": Tensor(np.array([1.5, -2.0], np.float16)),
        "Float64": Tensor(np.array([1.5, -2.0])),
        "Int64": Tensor(np.array([3, 4])),
        "Bool": Tensor(np.array([True, False])),
        "Complex64": Tensor(np.array([3 + 4j, 0], np.complex64)),
        "Float32": Tensor(np.zeros((0, 2), np.float32)),
    }
    debugger = make_debugger(tmp_path, level="debug", task="tensor", summary_mode="md5")
    debugger.start()
    for name, value in values.items():
        debugger.save(value, name)
    debugger.step()
    dump = read_dump(tmp_path)
    found = {name: dump[f"{name}.0.debug"] for name in values}
    assert [found[name]["dtype"] for name in values] == list(values)
    for name in ("BFloat16", "Float16", "Float64"):
        assert [found[name][key] for key in ("Max", "Min", "Mean", "Norm")] == [1.5, -2.0, -0.25, 2.5]
    assert [found["Int64"][key] for key in ("Max", "Min", "Mean", "Norm")] == [4, 3, 3.5, 5.0]
    assert (found["Bool"]["Max"], found["Bool"]["Min"]) == (True, False)
    assert (found["Complex64"]["Max"], found["Complex64"]["Norm"]) == (5.0, 5.0)
    assert found["Float32"]["Max"] is None
    bits = np.load(dump.folder / "dump_tensor_data" / found["BFloat16"]["data_name"])
    assert bits.dtype == np.float32  # numpy has no bfloat16; so msProbe writes it too
    assert bits.tolist() == [1.5, -2.0]
    assert found["BFloat16"]["md5"] == f"{zlib.crc32(bits.tobytes()):08x}"


def test_slices(tmp_path):
    dump = probe(tmp_path, lambda: ops.relu(Tensor(X)), slice=[{"dim": 0, "size": 2, "begin": 1, "end": 2}])
    entry = dump["Functional.relu.0.forward"]
    assert entry["input_args"][0]["shape"] == [1, 3]
    assert np.array_equal(dump.arrays("Functional.relu.0.forward", "input_args")[0], X[1:])


def test_overflow_check_keeps_only_the_call_that_makes_the_first_nan(tmp_path):
    x = Tensor(np.array([-1.0, 1.0], np.float32))
    dump = probe(tmp_path, lambda: ops.relu(ops.log(ops.abs(x) - 1.0) * 2.0), task="overflow_check")
    assert dump.names() == ["Functional.log.0.forward"]
    assert dump.arrays("Functional.log.0.forward", "output")[0].tolist() == [-np.inf, -np.inf]


def test_other_values(tmp_path):
    dump = probe(tmp_path, lambda: ops.cast(Tensor(X), ms.int32), task="statistics")
    assert dump["Functional.cast.0.forward"]["input_args"][1] == {"type": "mindspore.dtype", "value": "Int32"}


def test_kernels_of_forward_and_backward(tmp_path):
    program = build("mlp")
    dump = probe(tmp_path, train_step(program), program.network, level="L2", task="statistics")
    assert "Kernel.MatMul.0.forward" in dump
    assert dump.json("construct.json")["Kernel.MatMul.0.forward"] == "Cell.first.Dense.forward.0"
    assert dump.names("Kernel.MatMul", "backward")
    assert list(dump["Kernel.MatMul.0.backward"]) == ["input", "output"]


def test_the_config_is_read_again_while_dump_enable_stands_in_it(tmp_path):
    debugger = make_debugger(tmp_path, task="statistics", dump_enable=False)
    path = tmp_path / "config.json"
    debugger.start()
    ops.relu(Tensor(X))
    debugger.step()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dump_enable": True, "level": "debug"}))
    debugger.start()
    debugger.save(3, "point")
    debugger.step()
    assert not (tmp_path / "dump" / "step0").exists()
    assert read_dump(tmp_path, 1).names() == ["point.0.debug"]


@pytest.mark.parametrize(
    ("kind", "precision", "mean", "norm"),
    [
        ("float16", "low", 20000.0, np.inf),
        ("float16", "high", 20000.0, 20000.0 * 1000**0.5),
        ("bfloat16", "low", 19968.0, 630784.0),
        ("bfloat16", "high", 19968.0, 19968.0 * 1000**0.5),
        ("float32", "high", 20000.0, 20000.0 * 1000**0.5),
    ],
)
def test_precision_low_has_mean_and_norm_in_the_type_of_the_tensor(tmp_path, kind, precision, mean, norm):
    values = Tensor(np.full(1000, 20000.0, np.float32)).astype(getattr(ms, kind))
    dump = probe(tmp_path, lambda: ops.cast(values, ms.float64), precision=precision, task="statistics")
    element = dump["Functional.cast.0.forward"]["input_args"][0]
    assert element["Mean"] == mean
    assert element["Norm"] == (norm if precision == "low" else pytest.approx(norm))
