"""Model.train: a step of the debugger per step of the training, counted from where a training goes on."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Model

from tests.mindspore.probe.probing import make_debugger, read_dump
from windtunnel.errors import UsageError
from windtunnel.mindspore import MsprobeInitStep, MsprobeStep


def _training(seed=0):
    draw = np.random.RandomState(seed)
    data = {"x": draw.randn(6, 3).astype(np.float32), "y": draw.randint(0, 2, 6).astype(np.int32)}
    network = nn.SequentialCell(nn.Dense(3, 4), nn.ReLU(), nn.Dense(4, 2))
    for parameter in network.trainable_params():
        parameter.set_data(Tensor(draw.randn(*parameter.shape).astype(np.float32)))
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    model = Model(network, loss_fn=nn.CrossEntropyLoss(), optimizer=optimizer)
    return network, optimizer, model, NumpySlicesDataset(data, shuffle=False).batch(2)


def _steps(folder):
    return sorted(int(path.name.removeprefix("step")) for path in (folder / "dump").iterdir())


def _values(network):
    return [parameter.asnumpy().tobytes() for parameter in network.trainable_params()]


def test_each_step_of_a_training_is_a_step(tmp_path):
    bare, _, model, dataset = _training()
    model.train(1, dataset)
    network, _, model, dataset = _training()
    debugger = make_debugger(tmp_path, level="mix", task="statistics", step=[0, 2])
    model.train(1, dataset, callbacks=[MsprobeStep(debugger)])
    debugger.close()
    assert _steps(tmp_path) == [0, 2]
    names = read_dump(tmp_path, 2).names()
    for name in ("forward.0", "backward.0", "parameters_grad.0"):
        assert f"Cell.0.Dense.{name}" in names
    assert "Functional.cross_entropy.0.backward" in names
    assert _values(network) == _values(bare)  # to the bit


def test_the_model_can_be_given_before(tmp_path):
    """As the guides write it: start(model) once, then the training."""
    network, _, model, dataset = _training()
    debugger = make_debugger(tmp_path, level="L0", task="statistics")
    debugger.start(network)
    model.train(1, dataset, callbacks=[MsprobeStep(debugger)])
    debugger.close()
    assert _steps(tmp_path) == [0, 1, 2]
    assert read_dump(tmp_path, 0).names() == read_dump(tmp_path, 2).names()


@pytest.mark.parametrize("has_started", [False, True])
def test_a_training_that_goes_on_counts_from_its_epoch(tmp_path, has_started):
    network, _, model, dataset = _training()
    debugger = make_debugger(tmp_path, level="L0", task="statistics")
    if has_started:
        debugger.start(network)
    model.train(3, dataset, callbacks=[MsprobeInitStep(), MsprobeStep(debugger)], initial_epoch=2)
    debugger.close()
    assert _steps(tmp_path) == [6, 7, 8]


def test_a_training_that_goes_on_counts_from_its_optimizer(tmp_path):
    """Whose counter is in the checkpoint."""
    _, optimizer, model, dataset = _training()
    optimizer.global_step.set_data(Tensor(np.array([41], np.int32)))
    debugger = make_debugger(tmp_path, level="L0", task="statistics", step=[42])
    model.train(1, dataset, callbacks=[MsprobeInitStep(), MsprobeStep(debugger)])
    debugger.close()
    assert _steps(tmp_path) == [42]


def test_wrong_use_is_reported(tmp_path):
    with pytest.raises(UsageError, match="MsprobeStep was given a str"):
        MsprobeStep("debugger")
