"""Exporting a model whose tensors have no bytes: TorchScript, ONNX, torch.export; nothing dies, nothing is made up."""

from __future__ import annotations

import io
import warnings

import pytest
import torch
from torch import nn

from tests.capture.pytorch.simulated import run_plainly, simulate
from windtunnel.isolation.true_size import size_of_file

N_BYTES = 4 * (64 * 64 + 64 + 64 * 8 + 8)  # of the four weights of the model below


def _model():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


def _batch():
    return torch.randn(4, 64, device="cuda")


def _frozen():
    return torch.jit.freeze(torch.jit.script(_model().cuda()).eval())


SAVES = {
    "a path": lambda folder: torch.jit.save(torch.jit.script(_model().cuda()), folder / "model.pt"),
    "the module's own method": lambda folder: torch.jit.script(_model().cuda()).save(
        str(folder / "model.pt")
    ),
    "a trace": lambda folder: torch.jit.trace(_model().cuda(), _batch()).save(str(folder / "model.pt")),
    "weights on the host": lambda folder: torch.jit.script(_model()).save(str(folder / "model.pt")),
    "weights frozen into the code": lambda folder: torch.jit.save(_frozen(), folder / "model.pt"),
    "the lite interpreter": lambda folder: torch.jit.script(_model().cuda())._save_for_lite_interpreter(
        str(folder / "model.pt")
    ),
    "torch.export": lambda folder: torch.export.save(
        torch.export.export(_model().cuda(), (_batch(),)), folder / "model.pt"
    ),
    "ONNX by tracing": lambda folder: torch.onnx.export(
        _model().cuda(), (_batch(),), folder / "model.pt", dynamo=False
    ),
    "ONNX by torch.export": lambda folder: torch.onnx.export(
        _model().cuda(), (_batch(),), folder / "model.pt", dynamo=True
    ),
    "an ONNX program": lambda folder: torch.onnx.export(_model().cuda(), (_batch(),)).save(
        folder / "model.pt"
    ),
}


@pytest.mark.parametrize("name", SAVES)
def test_what_has_no_values_is_described_and_the_program_goes_on(tmp_path, name):
    path = tmp_path / "model.pt"
    result = simulate(lambda: SAVES[name](tmp_path))
    assert [notice for notice in result.notices if "wrote a file without weights" in notice]
    assert b"no weights are stored here" in path.read_bytes()
    assert size_of_file(str(path)) == path.stat().st_size + N_BYTES


def test_a_stream_gets_the_marker_and_what_reads_it_is_reported():
    def program():
        stream = io.BytesIO()
        torch.jit.save(torch.jit.script(_model().cuda()), stream)
        stream.seek(0)
        torch.jit.load(stream)

    result = simulate(program, is_ok=False)
    assert "torch.jit.load (at test_exports.py:" in result.error
    assert "which a dry run does not have: guard it with `if not windtunnel.is_dry_run():`" in result.error


def test_a_folder_that_is_missing_is_an_error_as_without_us(tmp_path):
    result = simulate(lambda: SAVES["a path"](tmp_path / "missing"), is_ok=False)
    assert "does not exist" in result.error


def test_an_onnx_program_has_no_bytes_to_read():
    result = simulate(lambda: torch.onnx.export(_model().cuda(), (_batch(),)).model_proto, is_ok=False)
    assert "model_proto of an ONNX program (at test_exports.py:" in result.error


def test_exporting_to_onnx_runs_the_model_once_without_gradients():
    def program():
        model = _model().cuda()
        torch.onnx.export(model, (_batch(),), io.BytesIO(), dynamo=False)
        return model.training

    result = simulate(program)
    assert result.answer is True
    assert result.op_names.count("aten.addmm.default") == 2


def test_a_real_scripted_file_is_loaded_to_the_card(tmp_path):
    path = tmp_path / "real.pt"

    def write():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.script(_model()).save(str(path))

    run_plainly(write)

    def program():
        there = torch.jit.load(path, map_location="cuda")
        moved = torch.jit.load(path).cuda()
        on_host = torch.jit.load(path)
        devices = [str(next(module.parameters()).device) for module in (there, moved, on_host)]
        return (
            devices,
            [tuple(module(_batch()).shape) for module in (there, moved)],
            on_host(torch.ones(1, 64)).sum().item(),
        )

    result = simulate(program)
    devices, shapes, total = result.answer
    assert devices == ["cuda:0", "cuda:0", "cpu"]
    assert shapes == [(4, 8), (4, 8)]
    assert total == pytest.approx(run_plainly(lambda: torch.jit.load(path)(torch.ones(1, 64)).sum().item()))


def test_a_real_module_is_scripted_and_saved_for_real(tmp_path):
    def program():
        torch.jit.save(torch.jit.script(nn.ReLU()), tmp_path / "relu.pt")
        return torch.jit.load(tmp_path / "relu.pt")(torch.tensor([-1.0, 2.0])).tolist()

    result = simulate(program)
    assert result.answer == [0.0, 2.0]
    assert result.notices == []


@pytest.mark.parametrize("device", ["a100-80gb", "ascend-910b-64gb", "cpu"])
def test_an_exported_program_runs(device):
    def program():
        kind = {"ascend-910b-64gb": "npu"}.get(device, "cpu" if device == "cpu" else "cuda")
        batch = torch.randn(4, 64, device=kind)
        exported = torch.export.export(_model().to(kind), (batch,))
        return tuple(exported.module()(batch).shape)

    assert simulate(program, device=device).answer == (4, 8)
