"""DistributedDataParallel of the models people train, in worlds of 2, 8 and 64 ranks, through `windtunnel run`.

DDP compares the shapes of all parameters in one message from rank 0, and the order of gradients in another: both are as
long as the model is deep.
"""

from __future__ import annotations

import json
import re
from math import prod

import pytest
import torch

from tests.capture.scripts import vision_models
from tests.commands.cli import read_json, windtunnel
from windtunnel.events.file import read_recording
from windtunnel.events.model import Collective

SCRIPT = vision_models.__file__.replace("vision_models", "ddp_models")


def _run(folder, world_size, *args):
    return windtunnel("run", "--no-html", "--world-size", world_size, SCRIPT, *args, cwd=folder, timeout=600)


def _reduced_bytes(folder):
    """What each simulated rank handed to all_reduce."""
    totals = {}
    for path in sorted((folder / "windtunnel-out").glob("rank*/recording.arrows")):
        recording = read_recording(path)
        calls = [recording.signatures[e.signature] for e in recording.events() if isinstance(e, Collective)]
        reduced = [spec for call in calls if call.name == "c10d.all_reduce" for spec in call.inputs]
        totals[path.parent.name] = sum(
            prod(spec.shape) * getattr(torch, spec.dtype).itemsize for spec in reduced
        )
    return totals


def _check(folder, done, world_size, n_steps):
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = read_json(folder / "windtunnel-out")["ranks"]
    assert [rank["rank"] for rank in ranks] == list(range(world_size))
    assert {rank["status"] for rank in ranks} <= {"ok", "same_as"}
    (peak,) = {rank["peak_bytes"] for rank in ranks}
    said = [json.loads(text) for text in re.findall(r"\[rank 0\] \S+ (\{.*\})", done.stdout)]
    largest, total = max(each["bytes"] for each in said), sum(each["bytes"] for each in said)
    assert peak > 3 * largest  # weights, gradients and momentum
    reduced = _reduced_bytes(folder)
    assert "rank0" in reduced
    assert len(reduced) >= 2  # which others depends on how many run at the same time
    assert set(reduced.values()) == {n_steps * total}
    return said


@pytest.mark.parametrize("name", vision_models.MODELS)
def test_the_models_are_the_published_ones(name):
    with torch.device("meta"):
        model = vision_models.MODELS[name]()
    assert sum(p.numel() for p in model.parameters()) == vision_models.PARAMETERS[name]


def test_models_of_up_to_a_thousand_parameter_tensors_train_under_ddp(tmp_path):
    done = _run(tmp_path, 2, "resnet50", "densenet121", "layers:500", "--steps", 2)
    said = _check(tmp_path, done, 2, n_steps=2)
    assert [each["tensors"] for each in said] == [161, 364, 1000]


@pytest.mark.thorough  # as the test above, with other models and more ranks
@pytest.mark.parametrize("world_size", [2, 8, 64])
def test_every_model_trains_under_ddp_in_every_world(tmp_path, world_size):
    done = _run(tmp_path, world_size, *vision_models.MODELS, "layers:500", "layers:8500")
    said = _check(tmp_path, done, world_size, n_steps=1)
    assert len(said) == len(vision_models.MODELS) + 2


@pytest.mark.parametrize("n_layers", [pytest.param(4, marks=pytest.mark.thorough), 600])
def test_a_rank_with_another_shape_is_caught(tmp_path, n_layers):
    done = _run(tmp_path, 2, f"layers:{n_layers}", "--odd", 1)
    assert done.returncode == 3
    said = " ".join(done.stdout.split())
    assert (
        f"rank 1: the model is not the same on every rank: parameter {2 * (n_layers - 2)} is [16, 8] here"
        in said
    )
    ranks = read_json(tmp_path / "windtunnel-out")["ranks"]
    assert [rank["status"] for rank in ranks][1] == "failed"


@pytest.mark.thorough
def test_a_rank_with_more_parameters_is_caught(tmp_path):
    (tmp_path / "more.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "from torch import nn\n"
        "dist.init_process_group('nccl'); torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
        "model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(600 + dist.get_rank())]).cuda()\n"
        "nn.parallel.DistributedDataParallel(model)\n"
    )
    done = windtunnel("run", "--no-html", "--world-size", 2, "more.py", cwd=tmp_path)
    assert done.returncode == 3
    said = " ".join(done.stdout.split())
    assert "rank 1 expects 3,606 int64 (28,848 bytes) from rank 0, which sends 28,800 bytes" in said
