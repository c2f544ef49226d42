"""Whole scripts as people write them, unmodified, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.commands.cli import windtunnel
from windtunnel.capture.pytorch.compiler.torch_compile import TRIED_TORCH

_SCRIPTS = Path(__file__).parents[1] / "scripts"
_DEMO = Path(__file__).parents[3] / "examples" / "qwen25_7b.py"


def run(tmp_path: Path, *arguments: str) -> tuple[int, dict, str]:
    """Exit code, report.json and output of `windtunnel run`."""
    done = windtunnel("run", "--out", tmp_path / "out", *arguments, cwd=tmp_path)
    return (
        done.returncode,
        json.loads((tmp_path / "out" / "report.json").read_text()),
        done.stdout + done.stderr,
    )


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.thorough)])
def test_nanogpt_with_autocast_compile_and_fused_adamw(tmp_path, dtype):
    code, report, output = run(tmp_path, str(_SCRIPTS / "nanogpt.py"), "--device=cuda", f"--dtype={dtype}")
    rank = report["ranks"][0]
    assert (code, rank["status"], rank["steps"]) == (0, "ok", 3), output
    if torch.__version__.startswith(TRIED_TORCH):
        assert "ran eagerly" not in output
        assert rank["compiled"]["n_graphs"] == 2  # one for training, one for evaluation
        assert "torch.compile: 2 graphs, " in output
    else:
        assert f"ran eagerly (the compiler is simulated with torch {TRIED_TORCH}x, and this is " in " ".join(
            output.split()
        )
    assert rank["at_peak_bytes"]["activations"] > rank["at_peak_bytes"]["inputs"] > 0
    # 137 k float32 parameters: weights, gradients, and twice that in Adam's moments (512-byte blocks add a little)
    assert rank["at_peak_bytes"]["optimizer"] == pytest.approx(2 * rank["at_peak_bytes"]["weights"], rel=0.05)
    assert any(u["where"].startswith("nanogpt.py:") for u in rank["unknown_values"])


def test_hugging_face_trainer_with_bf16_and_checkpointing(tmp_path):
    code, report, output = run(tmp_path, str(_SCRIPTS / "hf_trainer.py"), str(tmp_path / "checkpoints"))
    assert (code, report["ranks"][0]["steps"]) == (0, 4), output
    assert "trained on cuda:0 steps 4" in output
    assert "checkpoints written by a dry run contain shapes but no values" in output
    written = {Path(change["path"]).name for change in report["files"]["changes"]}
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"} <= written
    assert not (tmp_path / "checkpoints").exists()


def test_accelerate_loop(tmp_path):
    code, report, output = run(tmp_path, str(_SCRIPTS / "accelerate_loop.py"))
    assert (code, report["ranks"][0]["steps"]) == (0, 4), output
    assert "device cuda" in output


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.thorough), 13])
def test_distributed_data_parallel_as_any_rank(tmp_path, rank):
    code, report, output = run(tmp_path, "--world-size", "16", "--rank", str(rank), str(_SCRIPTS / "ddp.py"))
    found = report["ranks"][0]
    assert (code, found["rank"], found["steps"], report["world_size"]) == (0, rank, 2, 16), (
        output
    )  # 512 samples: 32 a rank
    assert f"rank {rank} of 16 on cuda:{rank % 8}" in output
    assert found["at_peak_bytes"]["communication"] > 0  # DDP's buckets


def test_a_7b_model_does_not_fit_and_then_does(tmp_path):
    code, report, output = run(tmp_path, str(_DEMO), "--batch-size", "4", "--steps", "2")
    rank = report["ranks"][0]
    assert (code, rank["status"], report["fits"]) == (4, "oom", False), output
    assert rank["at_peak_bytes"]["activations"] == max(rank["at_peak_bytes"].values())
    code, report, output = run(
        tmp_path, "--force", str(_DEMO), "--batch-size", "1", "--checkpointing", "--steps", "3"
    )
    rank = report["ranks"][0]
    assert (code, report["fits"], rank["steps"]) == (0, True, 3), output
    # 7,615,616,512 bf16 parameters; a large block may keep up to 1 MiB that was not worth splitting off
    assert 0 <= rank["at_peak_bytes"]["weights"] - 2 * 7_615_616_512 < 339 << 20
    assert rank["at_peak_bytes"]["optimizer"] >= 4 * 7_615_616_512
