# the old checkpoint becomes the backup of the new one
import os

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

os.replace("ck/model.pt", "ck/model.bak.pt")
torch.save(model.state_dict(), "ck/model.pt")

assert torch.load("ck/model.pt")["weight"].shape == (512, 1024)
assert torch.load("ck/model.bak.pt")["weight"].shape == (64, 64)
print("DONE")
