"""overflow_check and bench_path: only the calls that matter, with their tensors."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from windtunnel.pytorch import PrecisionDebugger


def _entries(dump: Path) -> dict:
    (file,) = dump.glob("step0/*/dump.json")
    return json.loads(file.read_text())["data"]


def _files(dump: Path) -> list[str]:
    return sorted(file.name for file in dump.glob("step0/*/dump_tensor_data/*.pt"))


def _collect(program, dump: Path, **config) -> dict:
    task = config.pop("task")
    file = dump.parent / f"{dump.name}.json"
    file.write_text(json.dumps({"task": task, "dump_path": str(dump), "level": "L1", task: config}))
    debugger = PrecisionDebugger(config_path=str(file))
    debugger.start()
    try:
        program()
    finally:
        debugger.step()
        debugger.close()
    return _entries(dump)


def test_only_the_call_that_makes_the_first_nan_is_kept(tmp_path):
    def program():
        x = torch.tensor([1.0, 4.0], requires_grad=True)
        mask = torch.tensor([0.0, float("-inf")])
        torch.softmax(x + mask, 0)  # an infinity that was given, not made
        torch.sqrt(x - 2.0).sum()
        torch.log(x * 0.0)  # the second one: not wanted any more

    entries = _collect(program, tmp_path / "out", task="overflow_check")
    assert list(entries) == ["Torch.sqrt.0.forward"]
    body = entries["Torch.sqrt.0.forward"]
    assert body["input_args"][0]["Max"] == 2.0
    assert body["output"][0]["nan_count"] == 1
    assert _files(tmp_path / "out") == ["Torch.sqrt.0.forward.input.0.pt", "Torch.sqrt.0.forward.output.0.pt"]


def test_a_call_in_place_keeps_the_input_it_had(tmp_path):
    def program():
        x = torch.tensor([1.0, 0.0])
        x.log_()

    entries = _collect(program, tmp_path / "out", task="overflow_check")
    body = entries["Tensor.log_.0.forward"]
    assert (body["input_args"][0]["Min"], body["output"][0]["Min"]) == (0.0, float("-inf"))


def test_a_gradient_that_overflows_is_found(tmp_path):
    def program():
        x = torch.tensor([0.0, 1.0], requires_grad=True)
        torch.sqrt(x).sum().backward()

    entries = _collect(program, tmp_path / "out", task="overflow_check")
    assert list(entries) == ["Torch.sqrt.0.backward"]
    assert entries["Torch.sqrt.0.backward"]["output"][0]["inf_count"] == 1


def test_a_clean_program_leaves_an_empty_dump(tmp_path):
    entries = _collect(lambda: torch.sqrt(torch.ones(3)), tmp_path / "out", task="overflow_check")
    assert entries == {}
    assert _files(tmp_path / "out") == []


class _Scale(torch.overrides.TorchFunctionMode):
    """Below the probe: torch.cos computes something else, as on another machine."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 1.001 if function is torch.cos else result


def test_only_calls_that_deviate_from_an_earlier_dump_are_kept(tmp_path):
    x = torch.linspace(-1.0, 1.0, 64)

    def program():
        torch.tanh(x)
        y = torch.cos(x)  # this one will deviate
        torch.sin(y)  # given other inputs then: not its fault

    _collect(program, tmp_path / "good", task="statistics", summary_mode="md5")
    again = _collect(program, tmp_path / "again", task="tensor", bench_path=str(tmp_path / "good"))
    with _Scale():
        bad = _collect(program, tmp_path / "bad", task="tensor", bench_path=str(tmp_path / "good"))
    assert again == {}
    assert list(bad) == ["Torch.cos.0.forward"]
    assert _files(tmp_path / "bad") == ["Torch.cos.0.forward.input.0.pt", "Torch.cos.0.forward.output.0.pt"]
