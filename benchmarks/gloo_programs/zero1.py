"""ZeroRedundancyOptimizer: DDP whose optimizer state is sharded over the ranks."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
device = parser.parse_args().device
dist.init_process_group("gloo" if device == "cpu" else "nccl")
rank = dist.get_rank()
if device == "cuda":
    torch.cuda.set_device(rank % torch.cuda.device_count())
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(12))).to(device)
model = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
for _ in range(3):
    loss = model(torch.randn(64, 256, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {rank} loss {loss.item():.3f}")
del optimizer, model  # they hold the group, whose threads must end before the interpreter does
dist.destroy_process_group()
