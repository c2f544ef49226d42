# rank 0 writes, removes and tells rank 1 the name; rank 1 reads it: both are on one layer
import json
import os
import shutil

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(1024, 512).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "ck/model.pt")
    shutil.rmtree("ck/old")
    with open("ck/best.json", "w") as f:
        json.dump({"step": 2}, f)
told = ["ck/best.json" if dist.get_rank() == 0 else None]
dist.broadcast_object_list(told, src=0)
with open(told[0]) as f:
    assert json.load(f) == {"step": 2}
assert not os.path.exists("ck/old")
assert torch.load("ck/model.pt", map_location="cpu")["weight"].shape == (512, 1024)
torch.save(optimizer.state_dict(), f"ck/optimizer-{dist.get_rank()}.pt")
dist.destroy_process_group()
print("DONE")
