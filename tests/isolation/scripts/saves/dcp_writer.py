# a FileSystemWriter that may overwrite, one file per tensor
import os

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

writer = dcp.FileSystemWriter("ck/dcp", single_file_per_rank=False, overwrite=True)
dcp.save({"model": model.state_dict()}, storage_writer=writer, no_dist=True)

state = {"model": model.state_dict()}
dcp.load(state, storage_reader=dcp.FileSystemReader("ck/dcp"), no_dist=True)
assert state["model"]["weight"].shape == (512, 1024)
assert len(os.listdir("ck/dcp")) >= 3
print("DONE")
