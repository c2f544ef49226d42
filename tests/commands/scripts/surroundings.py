"""Prints the variables a launcher sets, then trains one step on the card it was given."""

import json
import os

import torch

NAMES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"]
print("launcher", json.dumps({name: os.environ[name] for name in NAMES if name in os.environ}))
print("dry run", os.environ["WINDTUNNEL_DRY_RUN"])
rank = int(os.environ.get("RANK", 0))
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
if rank == 1:
    raise ValueError("rank 1 has no data")
weight = torch.zeros(1024, 1024 + 1024 * rank, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
optimizer.step()
