# torch.save through a symbolic link to a file and through one to a folder
import os

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

torch.save(model.state_dict(), "ck/best.pt")
torch.save(model.state_dict(), "ck/latest/model.pt")

assert os.path.islink("ck/best.pt")
for path in ("ck/old/model.pt", "ck/checkpoint-100/model.pt"):
    assert torch.load(path)["weight"].shape == (512, 1024)
print("DONE")
