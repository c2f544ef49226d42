"""Mistakes that hang or fail on a cluster, planted one at a time; and the same programs without them.

Each is a whole job under `windtunnel run`: exit code 3 and one sentence that names both lines.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.commands.cli import windtunnel

START = """
import os, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x, y = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
"""
END = """
model = nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
    optimizer.zero_grad()
"""

# name -> (with the mistake, without it, what must be said)
BUGS = {
    "another order on one rank": (
        "calls = [lambda: dist.all_reduce(x), lambda: dist.broadcast(y, 0)]\n"
        "for call in calls if rank == 0 else calls[::-1]: call()",
        "for call in [lambda: dist.all_reduce(x), lambda: dist.broadcast(y, 0)]: call()",
        r"rank 0 calls all_reduce of 4 float32 at job\.py:\d+ .* rank 1 calls broadcast .* at job\.py:\d+.* would hang",
    ),
    "one rank skips a collective": (
        "if rank == 0: dist.all_reduce(x)",
        "dist.all_reduce(x)",
        r"rank 0 calls all_reduce of 4 float32 at job\.py:8 .* rank 1 calls all_reduce of 4,?096 float32 at job\.py:\d+",
    ),
    "another dtype on one rank": (
        "dist.all_reduce(x if rank == 0 else x.bfloat16())",
        "dist.all_reduce(x.bfloat16())",
        r"4 float32 at job\.py:8 .* 4 bfloat16 at job\.py:8: the result would be garbage or the job would hang",
    ),
    "another number of elements on one rank": (
        "dist.all_reduce(torch.ones(4 + rank, device='cuda'))",
        "dist.all_reduce(torch.ones(4, device='cuda'))",
        r"all_reduce of 4 float32 .* all_reduce of 5 float32",
    ),
    "a send that nobody receives": (
        "if rank == 0: dist.send(x, 1)",
        "dist.send(x, 1) if rank == 0 else dist.recv(x, 0)",
        r"rank 0 sends 4 float32 to rank 1 at job\.py:8, and rank 1 never receives it",
    ),
    "a receive that nobody sends": (
        "if rank == 1: dist.recv(x, 0)",
        "dist.send(x, 1) if rank == 0 else dist.recv(x, 0)",
        r"rank 1 waits for 4 float32 from rank 0 at job\.py:8, and rank 0 never sends it",
    ),
    "an object that is never sent": (
        "if rank == 1: dist.recv_object_list([None], 0)",
        "dist.send_object_list([{'shape': (2, 3)}], 1) if rank == 0 else dist.recv_object_list([None], 0)",
        r"rank 1 waits for 1 int64 from rank 0, which ended without sending them: the job would hang \(at .*job\.py:8\)",
    ),
    "a mesh larger than the job": (
        "from torch.distributed.device_mesh import init_device_mesh; init_device_mesh('cuda', (2, 2))",
        "from torch.distributed.device_mesh import init_device_mesh; init_device_mesh('cuda', (2, 1))",
        r"parallel strategy does not fit the number of devices: a mesh of 4 ranks is larger than the world size of 2",
    ),
    "heads that tensor parallelism does not divide": (
        "nn.Linear(192, 192 // world, device='cuda')(torch.randn(2, 16, 192, device='cuda')).view(2, 16, 3 // world, 64)",
        "nn.Linear(256, 256 // world, device='cuda')(torch.randn(2, 16, 256, device='cuda')).view(2, 16, 4 // world, 64)",
        r"cannot be viewed as \[2, 16, 1, 64\]; with 2 ranks, check that the tensor-parallel size divides heads",
    ),
    "fewer micro-batches than stages": (
        "from torch.distributed.pipelining import PipelineStage, Schedule1F1B\n"
        "stage = PipelineStage(nn.Linear(64, 64, device='cuda'), rank, world, torch.device('cuda', rank))\n"
        "Schedule1F1B(stage, 1, loss_fn=lambda a, b: a.sum())",
        "from torch.distributed.pipelining import PipelineStage, Schedule1F1B\n"
        "stage = PipelineStage(nn.Linear(64, 64, device='cuda'), rank, world, torch.device('cuda', rank))\n"
        "data = torch.randn(8, 64, device='cuda')\n"
        "pipe = Schedule1F1B(stage, 2, loss_fn=lambda a, b: a.sum())\n"
        "pipe.step(data) if rank == 0 else pipe.step(target=data)",
        r"1 micro-batches cannot fill a pipeline of 2 stages: use at least 2",
    ),
    "a host tensor given to the cards' library": (
        "dist.all_reduce(torch.ones(4))",
        "dist.all_reduce(torch.ones(4).cuda())",
        r"a collective was given a tensor on cpu, which this process group's backend cannot reach",
    ),
}


# Found in the same way as others of these.
_REPEATS = {
    "another number of elements on one rank",
    "a send that nobody receives",
    "another order on one rank",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name in _REPEATS else name for name in BUGS]
)
def test_a_planted_mistake_is_reported_in_one_sentence(tmp_path, name):
    wrong, _, sentence = BUGS[name]
    result = _run(tmp_path, wrong)
    said = " ".join(result.stdout.split())
    assert result.returncode == 3, said
    assert re.search(sentence, said), said


def test_the_same_programs_without_the_mistakes_pass(tmp_path):
    result = _run(tmp_path, "\n".join(right for _, right, _ in BUGS.values()))
    assert result.returncode == 0, result.stdout
    assert "hang" not in result.stdout


def test_a_mistake_on_any_rank_of_a_small_job_is_found(tmp_path):
    result = _run(tmp_path, "if rank != 2: dist.all_reduce(x)", n_ranks=4)
    assert result.returncode == 3, result.stdout
    assert "rank 2" in result.stdout


def _run(folder: Path, middle: str, n_ranks: int = 2) -> subprocess.CompletedProcess[str]:
    script = folder / "job.py"
    script.write_text(START + middle + END, encoding="utf-8")
    options = ["--level", 0, "--world-size", n_ranks, "--out", folder / "out"]
    return windtunnel("run", *options, script, cwd=folder, env={"COLUMNS": "200"})
