# a temporary file in one folder, renamed over a real one in another
import os

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

os.makedirs("staging")
torch.save(model.state_dict(), "staging/model.pt")
os.rename("staging/model.pt", "ck/checkpoint-100/model.pt")
os.rmdir("staging")

assert torch.load("ck/checkpoint-100/model.pt")["weight"].shape == (512, 1024)
print("DONE")
