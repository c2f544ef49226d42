"""Mistakes: those of the probe never reach the program, those of the user are one sentence each."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.probe.probing import make_debugger, probe, read_dump
from windtunnel.errors import UsageError, WindtunnelError
from windtunnel.pytorch import PrecisionDebugger

X = torch.linspace(-1, 1, 24).view(4, 6)


# ------------------------------------------------------------------ the probe's own errors


@pytest.mark.parametrize(
    ("place", "level"),
    [
        ("windtunnel.probe.pytorch.eager.call_writer.CallWriter.open", "mix"),
        ("windtunnel.probe.pytorch.eager.call_writer.CallWriter.close", "mix"),
        ("windtunnel.probe.pytorch.eager.elements.Elements.tensor", "mix"),
        ("windtunnel.probe.pytorch.eager.elements.Elements.tensor", "L0"),
        ("windtunnel.probe.pytorch.eager.elements.Elements.tensor", "L2"),
        ("windtunnel.probe.pytorch.eager.gradients.Call.ran", "L1"),
        ("windtunnel.probe.pytorch.eager.gradients.Call.finish", "mix"),
        ("windtunnel.probe.pytorch.eager.tensor_meter.TorchMeter.measure", "mix"),
        ("windtunnel.probe.collect.collector.Collector.put", "mix"),
        ("windtunnel.probe.files.step_writer.StepWriter.add_call", "L1"),
        ("windtunnel.probe.collect.collector.Collector.flush", "L0"),
        ("windtunnel.probe.files.step_writer.StepWriter.close", "L0"),
        ("windtunnel.probe.files.tensor_store.TensorStore.save", "mix"),
        ("windtunnel.probe.collect.call_stack.CallStacks.here", "mix"),
        ("windtunnel.probe.collect.callsite.CallSites.as_written", "L1"),
        ("windtunnel.probe.collect.layer_hooks.LayerHooks._begin", "L0"),
        ("windtunnel.probe.collect.layer_hooks.LayerHooks._end", "mix"),
        ("windtunnel.probe.collect.parameter_gradients._ModuleGradients._take", "L0"),
        ("windtunnel.probe.config.selection.Selection.leave", "mix"),
        ("windtunnel.probe.config.selection.Selection.wants_api", "L1"),
        ("windtunnel.probe.collect.layer_hooks.LayerHooks.remove", "L0"),
        ("windtunnel.probe.pytorch.eager.apis.OperatorNames.install", "L1"),
        ("windtunnel.probe.pytorch.eager.apis.OperatorNames.take", "L1"),
    ],
)
def test_an_error_of_the_probe_never_reaches_the_program(tmp_path, monkeypatch, caplog, place, level):
    def broken(*args, **kwargs):
        raise RuntimeError("a mistake in the probe")

    def work() -> None:
        net(X).sum().backward()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    work()
    wanted = net[0].weight.grad.clone()
    net.zero_grad()
    debugger = make_debugger(tmp_path, level=level, step=[0])
    monkeypatch.setattr(place, broken)
    debugger.start(net)
    work()
    debugger.stop()
    debugger.step()
    monkeypatch.undo()
    debugger.stop()
    debugger.close()
    assert torch.equal(net[0].weight.grad, wanted)
    (log,) = tmp_path.rglob("dump_error_info.log")
    assert log.parent.parent.name == "step0"
    text = log.read_text()
    assert "a mistake in the probe" in text
    assert debugger.collector.n_errors == text.count("a mistake in the probe\n")
    told = [record.getMessage() for record in caplog.records]
    assert any("error" in line and "dump_error_info.log" in line for line in told), told
    json.loads(next(tmp_path.rglob("dump.json")).read_text())


def test_an_error_while_a_step_is_opened_leaves_the_program_alone(tmp_path, monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise RuntimeError("a mistake in the probe")

    debugger = make_debugger(tmp_path, level="L1")
    monkeypatch.setattr("windtunnel.probe.collect.debugger.StepOutput", broken)
    debugger.start()
    (X + 1).sum()
    debugger.stop()
    debugger.step()
    monkeypatch.undo()
    debugger.start()
    (X + 1).sum()
    debugger.step()
    assert "Tensor.__add__.0.forward" in read_dump(tmp_path, 1)
    assert debugger.collector.n_errors == 1


# ------------------------------------------------------------------ mistakes of the user


def _message(call) -> str:
    with pytest.raises(WindtunnelError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_start_needs_a_model_at_levels_of_modules(tmp_path):
    for level in ("L0", "mix"):
        debugger = make_debugger(tmp_path, level=level)
        assert level in _message(debugger.start)


@pytest.mark.parametrize("model", [3, "net", [], [3], {"a": nn.ReLU()}, lambda x: x])
def test_start_is_given_something_that_is_no_model(tmp_path, model):
    debugger = make_debugger(tmp_path, level="L0")
    assert "start(model) was given" in _message(lambda: debugger.start(model))


@pytest.mark.parametrize("rank", [-1, "0", 1.5])
def test_a_rank_that_is_none(tmp_path, rank):
    debugger = make_debugger(tmp_path, level="L1")
    assert repr(rank) in _message(lambda: debugger.start(rank_id=rank))


@pytest.mark.parametrize("step", [-1, "3", 1.5, None, True])
def test_a_first_step_that_is_none(tmp_path, step):
    debugger = make_debugger(tmp_path)
    assert repr(step) in _message(lambda: debugger.set_init_step(step))


def test_a_method_before_there_is_a_debugger():
    if PrecisionDebugger.current is not None:
        PrecisionDebugger.current.close()
    PrecisionDebugger.current = None
    for name in ("start", "stop", "step"):
        with pytest.raises(UsageError, match=rf"{name}\(\) was called before"):
            getattr(PrecisionDebugger, name)()


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"level": "L9"}, "L9"),
        ({"task": "tensors"}, "tensors"),
        ({"step": [1.5]}, "1.5"),
        ({"summary_mode": "md6"}, "md6"),
        ({"data_mode": ["forwards"]}, "forwards"),
        ({"risk_level": "SOME"}, "SOME"),
    ],
)
def test_a_wrong_value_is_named(tmp_path, keys, word):
    assert word in _message(lambda: make_debugger(tmp_path, **keys))


def test_a_filter_that_matches_nothing_is_reported(tmp_path, caplog):
    debugger = make_debugger(tmp_path, level="L1", task="statistics", list=["no_such_api"])
    debugger.start()
    F.relu(X)
    debugger.step()
    debugger.close()
    assert any("no_such_api" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(("name", "is_told"), [("no_such_api", True), ("relu", False)])
def test_a_list_of_tensors_that_matches_nothing_is_reported(tmp_path, caplog, name, is_told):
    probe(tmp_path, lambda: F.relu(X), task="statistics", tensor_list=[name])
    assert any("no tensor was saved" in record.getMessage() for record in caplog.records) == is_told


def test_steps_that_never_come_are_reported(tmp_path, caplog):
    debugger = make_debugger(tmp_path, level="L1", step=[7])
    debugger.start()
    debugger.step()
    debugger.close()
    assert any("7" in record.getMessage() for record in caplog.records)
    assert not (tmp_path / "dump").exists() or not list((tmp_path / "dump").iterdir())


def test_a_rank_without_a_group_is_reported(tmp_path, caplog):
    debugger = make_debugger(tmp_path, level="L1", rank=[3])
    debugger.start(rank_id=0)
    F.relu(X)
    debugger.step()
    debugger.close()
    assert any("rank" in record.getMessage() for record in caplog.records)


def test_save_at_another_level_is_reported(tmp_path, caplog):
    debugger = make_debugger(tmp_path, level="L1")
    debugger.save(X, "x")
    assert any("debug" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("task", ["statistics", "tensor", "structure"])
def test_a_dump_that_could_not_be_written_is_not_said_to_be_there(tmp_path, caplog, task):
    debugger = make_debugger(tmp_path, level="mix", task=task)
    (tmp_path / "dump").write_text("a file where a folder should be")
    for _ in range(2):
        debugger.start(nn.Sequential(nn.Linear(6, 2)))
        F.relu(X)
        debugger.stop()
        debugger.step()
    debugger.close()
    last = caplog.records[-1].getMessage()
    assert last.startswith(
        f"windtunnel: no step could be written completely to {tmp_path / 'dump'}, so up to 2 collected entries are lost: "
    )
    assert ("4 tensors could not be saved" in last) == (task == "tensor")
    # The debugger of the test before may be closed only now, and says where its own data is.
    said = f"the collected data is in {tmp_path}"
    assert not any(said in record.getMessage() for record in caplog.records)


def test_a_step_that_could_not_be_written_is_counted_at_the_end(tmp_path, caplog):
    debugger = make_debugger(tmp_path, level="L1", task="statistics", step=[0, 1])
    for number in range(2):
        debugger.start()
        F.relu(X)
        debugger.stop()
        if number:
            shutil.rmtree(tmp_path / "dump" / "step1")
            (tmp_path / "dump" / "step1").write_text("in the way")
        debugger.step()
    assert (
        f"1 of 2 steps could not be written completely to {tmp_path / 'dump'}, so up to 1 collected entries are lost"
        in caplog.records[-1].getMessage()
    )
