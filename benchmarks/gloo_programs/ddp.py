"""DistributedDataParallel with small buckets, AdamW and a reduced loss."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
device = parser.parse_args().device
dist.init_process_group("gloo" if device == "cpu" else "nccl")
rank = dist.get_rank()
if device == "cuda":
    torch.cuda.set_device(rank % torch.cuda.device_count())
torch.manual_seed(rank)

model = nn.Sequential(
    nn.Embedding(1000, 192), *(nn.TransformerEncoderLayer(192, 4, 768, batch_first=True) for _ in range(3))
)
model = nn.Sequential(model, nn.Linear(192, 1000)).to(device)
model = DistributedDataParallel(model, bucket_cap_mb=1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    ids = torch.randint(0, 1000, (4, 65), device=device)
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
dist.barrier()
print(f"rank {rank} loss {mean.item() / dist.get_world_size():.3f}")
dist.destroy_process_group()
