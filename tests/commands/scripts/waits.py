"""Rank 0 trains for ever, and every other rank waits for a word from it."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
weight = torch.zeros(256, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
n_steps = 0
print("rank", dist.get_rank(), "begins", flush=True)
if dist.get_rank():
    dist.recv_object_list([None], src=0)
while True:
    weight.sum().backward()
    optimizer.step()
    if n_steps == 0:
        print("a step", flush=True)
    n_steps += 1
