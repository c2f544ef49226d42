# the old checkpoint is removed first to make room
import os

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

os.remove("ck/model.pt")
torch.save(model.state_dict(), "ck/model.pt")

assert torch.load("ck/model.pt")["weight"].shape == (512, 1024)
print("DONE")
