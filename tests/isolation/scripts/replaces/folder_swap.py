# a new folder is written beside, the old one removed, the new one renamed to its name
import os
import shutil

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

os.makedirs("ck.tmp")
torch.save(model.state_dict(), "ck.tmp/model.pt")
shutil.rmtree("ck")
os.rename("ck.tmp", "ck")

assert os.listdir("ck") == ["model.pt"]
assert torch.load("ck/model.pt")["weight"].shape == (512, 1024)
print("DONE")
