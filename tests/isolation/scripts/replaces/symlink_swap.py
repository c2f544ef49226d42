# the link `latest` is made to point at a new checkpoint, by way of a temporary link
import os

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

os.makedirs("ck/checkpoint-2")
torch.save(model.state_dict(), "ck/checkpoint-2/model.pt")
os.symlink("checkpoint-2", "ck/latest.tmp")
os.replace("ck/latest.tmp", "ck/latest")

assert os.readlink("ck/latest") == "checkpoint-2"
assert torch.load("ck/latest/model.pt")["weight"].shape == (512, 1024)
print("DONE")
