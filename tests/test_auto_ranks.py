"""`--ranks auto` against `--ranks all` where ranks are uneven: every rank must get the same numbers either way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands.cli import windtunnel

START = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

def share(n, parts, part):  # the first ones take what is left over
    return n // parts + (part < n % parts)

def train(model, forward):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        forward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=dp.get_group())
        optimizer.step()
        optimizer.zero_grad()
"""

PROGRAMS = {
    "a vocabulary that tensor parallelism does not divide": """
mesh = init_device_mesh("cuda", (4, 3), mesh_dim_names=("dp", "tp"))
dp, tp = mesh["dp"], mesh["tp"]
rows = share(1000, 3, tp.get_local_rank())
model = nn.ModuleList([nn.Embedding(rows, 64), nn.Linear(64, 64), nn.Linear(64, rows)]).cuda()
def forward():
    tokens = torch.zeros(8, 16, dtype=torch.long, device="cuda")
    hidden = model[0](tokens)
    dist.all_reduce(hidden, group=tp.get_group())
    model[2](model[1](hidden)).float().softmax(-1).sum().backward()
train(model, forward)
""",
    "layers that the pipeline does not divide": """
mesh = init_device_mesh("cuda", (4, 3), mesh_dim_names=("pp", "dp"))
pp, dp = mesh["pp"], mesh["dp"]
stage = pp.get_local_rank()
model = nn.Sequential(*(nn.Linear(96, 96) for _ in range(share(10, 4, stage)))).cuda()
def forward():
    x = torch.randn(32, 96, device="cuda", requires_grad=True)
    if stage > 0:
        dist.recv(x.data, group_src=stage - 1, group=pp.get_group())
    y = model(x)
    if stage < 3:
        dist.send(y.detach(), group_dst=stage + 1, group=pp.get_group())
    y.sum().backward()
train(model, forward)
""",
    "a last shard that is padded, and empty ones": """
from torch.distributed.fsdp import fully_shard
model = nn.Sequential(nn.Linear(40, 100), nn.ReLU(), nn.Linear(100, 37), nn.ReLU(), nn.Linear(37, 5)).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(16, 40, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "experts that their ranks do not divide": """
mesh = init_device_mesh("cuda", (3, 4), mesh_dim_names=("dp", "ep"))
dp, ep = mesh["dp"], mesh["ep"]
model = nn.ModuleList(nn.Linear(64, 64) for _ in range(share(10, 4, ep.get_local_rank()))).cuda()
def forward():
    tokens = torch.randn(64, 64, device="cuda")
    received = torch.empty_like(tokens)
    dist.all_to_all_single(received, tokens, group=ep.get_group())
    parts = received.chunk(len(model))
    torch.cat([expert(part) for expert, part in zip(model, parts)]).sum().backward()
train(model, forward)
""",
}


_SLOW = {
    "a last shard that is padded, and empty ones",
    "experts that their ranks do not divide",
    "a vocabulary that tensor parallelism does not divide",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name in _SLOW else name for name in PROGRAMS]
)
def test_auto_gives_every_rank_what_all_gives_it(tmp_path, name):
    script = tmp_path / "job.py"
    script.write_text(START + PROGRAMS[name], encoding="utf-8")
    n_ranks = 24 if "shard" in name else 12
    by_all = _run(tmp_path, script, "all", n_ranks)
    by_auto = _run(tmp_path, script, "auto", n_ranks)
    assert [_memory(rank) for rank in by_auto["ranks"]] == [_memory(rank) for rank in by_all["ranks"]]
    assert len({_memory(rank) for rank in by_all["ranks"]}) > 1  # uneven indeed
    assert any(rank["status"] == "same_as" for rank in by_auto["ranks"])  # and not simply all of them again


def _memory(rank):
    return rank["peak_bytes"], rank["peak_with_fragments_bytes"], tuple(rank["at_peak_bytes"].values())


def _run(folder: Path, script: Path, ranks: str, n_ranks: int):
    out = folder / ranks
    world = ["--world-size", n_ranks, "--nproc-per-node", 4]
    done = windtunnel("run", *world, "--ranks", ranks, "--out", out, script, cwd=folder)
    assert done.returncode == 0, done.stdout
    return json.loads((out / "report.json").read_text(encoding="utf-8"))
