"""Experts distributed over the ranks; tokens are sent there and back with all_to_all_single."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
device = parser.parse_args().device
dist.init_process_group("gloo" if device == "cpu" else "nccl")
rank, world_size = dist.get_rank(), dist.get_world_size()
if device == "cuda":
    torch.cuda.set_device(rank % torch.cuda.device_count())
torch.manual_seed(rank)
expert = nn.Sequential(nn.Linear(256, 1024), nn.SiLU(), nn.Linear(1024, 256)).to(device)
router = nn.Linear(256, world_size).to(device)
optimizer = torch.optim.AdamW([*expert.parameters(), *router.parameters()], lr=1e-3)
for _ in range(3):
    x = torch.randn(world_size * 32, 256, device=device)  # every expert takes 32 tokens of every rank
    gate = router(x).softmax(-1).amax(-1, keepdim=True)
    received = all_to_all_single(torch.empty_like(x), x)
    back = all_to_all_single(torch.empty_like(x), expert(received))
    loss = (x + gate * back).square().mean()
    loss.backward()
    for p in router.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {rank} loss {loss.item():.3f}")
dist.destroy_process_group()
