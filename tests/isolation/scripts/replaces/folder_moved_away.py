# an old folder is renamed, not removed, and a new one takes its place
import os

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

os.rename("ck/checkpoint-100", "ck/checkpoint-100.bak")
os.makedirs("ck/checkpoint-100")
torch.save(model.state_dict(), "ck/checkpoint-100/model.pt")

assert os.listdir("ck/checkpoint-100") == ["model.pt"]
assert torch.load("ck/checkpoint-100.bak/model.pt")["weight"].shape == (64, 64)
assert len(os.listdir("ck/checkpoint-100.bak")) == 7
print("DONE")
