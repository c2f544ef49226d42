"""DistributedDataParallel of models one after the other, a few steps each; `layers:500` is a model of 1,000 parameter tensors.

`--odd RANK`: on that rank the last layer but one of `layers:N` has another shape.
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from vision_models import MODELS

parser = argparse.ArgumentParser()
parser.add_argument("models", nargs="+")
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--steps", type=int, default=1)
parser.add_argument("--odd", type=int, default=-1)
args = parser.parse_args()

dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
for name in args.models:
    if name.startswith("layers:"):
        widths = [8] * int(name.partition(":")[2])
        if dist.get_rank() == args.odd:
            widths[-2] = 16
        model = nn.Sequential(*[nn.Linear(a, b) for a, b in zip([8, *widths], widths, strict=False)]).cuda()
        batch = torch.randn(args.batch_size, 8, device="cuda")
    else:
        model = MODELS[name]().cuda()
        batch = torch.randn(args.batch_size, 3, 224, 224, device="cuda")
    facts = {
        "tensors": len(list(model.parameters())),
        "bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
    }
    model = DistributedDataParallel(model, device_ids=[local])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(args.steps):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(name, json.dumps(facts | {"peak": torch.cuda.max_memory_allocated()}), flush=True)
    del model, optimizer
    torch.cuda.reset_peak_memory_stats()
