"""Plain DistributedDataParallel, started by torchrun."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
rank, local_rank, world_size = dist.get_rank(), int(os.environ["LOCAL_RANK"]), dist.get_world_size()
torch.cuda.set_device(local_rank)
model = nn.Sequential(nn.Linear(128, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
model = DDP(model, device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
dataset = TensorDataset(torch.randn(512, 128), torch.randint(0, 10, (512,)))
loader = DataLoader(
    dataset, batch_size=16, sampler=DistributedSampler(dataset), num_workers=2, pin_memory=True
)
for step, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if step == 3:
        break
dist.barrier()
print(f"rank {rank} of {world_size} on cuda:{torch.cuda.current_device()}")
dist.destroy_process_group()
