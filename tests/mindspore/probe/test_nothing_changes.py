"""The probe changes no number, and after stop everything is as it was."""

from __future__ import annotations

import gc
import sys

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.communication import comm_func
from mindspore.mint import distributed

from tests.mindspore.probe.models import build, train_step
from tests.mindspore.probe.probing import make_debugger, read_dump

LEVELS = ("L0", "L1", "mix", "L2", "debug")


def _train(name, debugger=None, n_steps=2):
    """The losses and the parameters after some steps, as bytes."""
    program = build(name)
    step = train_step(program)
    found = []
    for _ in range(n_steps):
        if debugger is not None:
            debugger.start(program.network)
        found.append(step())
        if debugger is not None:
            debugger.stop()
            debugger.step()
    return found, [value.asnumpy().tobytes() for value in program.network.get_parameters()]


@pytest.mark.parametrize("name", ["mlp", pytest.param("transformer", marks=pytest.mark.thorough)])
def test_losses_and_parameters_are_the_same_bit_by_bit(tmp_path, name):
    bare = _train(name)
    for level in LEVELS:
        debugger = make_debugger(tmp_path / level, level=level, task="statistics")
        assert _train(name, debugger) == bare, level
        debugger.close()
        assert debugger.collector.n_errors == 0
        assert level == "debug" or read_dump(tmp_path / level).data


def _everything():
    spaces = (ops, mint, mint.nn.functional, comm_func, distributed, Tensor, ops.Primitive, nn.Cell)
    return [{key: id(value) for key, value in vars(space).items() if callable(value)} for space in spaces]


@pytest.mark.parametrize("level", LEVELS)
def test_after_stop_everything_is_as_it_was(tmp_path, level):
    program = build("mlp")
    step = train_step(program)
    step()
    before = _everything()
    debugger = make_debugger(tmp_path, level=level, task="statistics")
    debugger.start(program.network)
    if level in ("L1", "mix"):
        assert _everything() != before
        assert type(program.network.mul) is not ops.Mul
    step()
    debugger.stop()
    debugger.step()
    assert _everything() == before
    assert type(program.network.mul) is ops.Mul
    for _, cell in program.network.cells_and_names():
        assert not cell._forward_hook
        assert not cell._forward_pre_hook
    assert all(not parameter.hooks() for parameter in program.network.trainable_params())
    debugger.close()


def test_functions_imported_by_name_are_recorded_and_put_back(tmp_path):
    module = type(sys)("program_of_a_user")
    module.relu = original = ops.relu
    sys.modules["program_of_a_user"] = module
    try:
        debugger = make_debugger(tmp_path, task="statistics")
        debugger.start()
        module.relu(Tensor([1.0, -1.0]))
        debugger.stop()
        debugger.step()
        assert module.relu is original
    finally:
        del sys.modules["program_of_a_user"]
    assert read_dump(tmp_path).names() == ["Functional.relu.0.forward"]
    debugger.close()


def test_the_graph_is_freed(tmp_path):
    """Hooks on nodes hold no node: gradients of a step can go when the program lets go of them."""
    debugger = make_debugger(tmp_path, level="mix", task="statistics")
    program = build("mlp")
    step = train_step(program)
    held = []
    for _ in range(4):
        debugger.start(program.network)
        step()
        debugger.stop()
        debugger.step()
        gc.collect()
        held.append(len(debugger.writer._held) + len(debugger.writer._partial))
    assert held == [0, 0, 0, 0]
    debugger.close()


def test_an_error_of_the_probe_never_reaches_the_program(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("a mistake of ours")

    bare = _train("mlp", n_steps=1)
    for place in (
        "windtunnel.probe.mindspore.pynative.call_writer.CallWriter.open",
        "windtunnel.probe.mindspore.pynative.call_writer.CallWriter.close",
        "windtunnel.probe.mindspore.pynative.elements.Elements.tensor",
        "windtunnel.probe.mindspore.pynative.gradients.Call.ran",
        "windtunnel.probe.mindspore.pynative.gradients.Call.finish",
        "windtunnel.probe.collect.layer_hooks.LayerHooks._begin",
        "windtunnel.probe.collect.layer_hooks.LayerHooks._end",
        "windtunnel.probe.mindspore.pynative.apis.ApiStandIns.install",
        "windtunnel.probe.mindspore.pynative.primitives.Primitives.install",
        "windtunnel.probe.collect.parameter_gradients._ModuleGradients._take",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, broken)
            debugger = make_debugger(tmp_path / place, level="mix", task="statistics")
            assert _train("mlp", debugger, n_steps=1) == bare, place
            assert debugger.collector.n_errors > 0, place
            debugger.close()


def test_an_exception_of_the_program_passes_and_recording_goes_on(tmp_path):
    debugger = make_debugger(tmp_path, task="statistics")
    debugger.start()
    with pytest.raises(Exception, match=r"."):
        ops.matmul(Tensor(np.ones((2, 3), np.float32)), Tensor(np.ones((2, 3), np.float32))).asnumpy()
    ops.tanh(Tensor([1.0]))
    debugger.stop()
    debugger.step()
    debugger.close()
    assert "Functional.tanh.0.forward" in read_dump(tmp_path)


def test_it_runs_in_dynamic_mode():
    assert ms.get_context("mode") == ms.PYNATIVE_MODE
