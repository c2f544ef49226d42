"""A 2-D mesh: tensor parallel inside, fully_shard outside, gradients accumulated over two micro-batches."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
device = parser.parse_args().device
dist.init_process_group("gloo" if device == "cpu" else "nccl")
rank = dist.get_rank()
if device == "cuda":
    torch.cuda.set_device(rank % torch.cuda.device_count())
mesh = init_device_mesh(device, (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(256), nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(nn.functional.relu(self.up(self.norm(x))))


model = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(256, 16)).to(device)
for block in model[:-1]:
    parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(block, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
for _ in range(3):
    for micro_batch in range(2):
        model.set_requires_gradient_sync(micro_batch == 1)
        x, y = torch.randn(64, 256, device=device), torch.randint(0, 16, (64,), device=device)
        loss = nn.functional.cross_entropy(model(x), y) / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {rank} loss {loss.item():.3f}")
dist.destroy_process_group()
