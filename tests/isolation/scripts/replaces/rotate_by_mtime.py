# only the newest folder is kept, by modification time
import glob
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

os.makedirs("ck/checkpoint-2")
torch.save(model.state_dict(), "ck/checkpoint-2/model.pt")
for folder in sorted(glob.glob("ck/checkpoint-*"), key=os.path.getmtime)[:-1]:
    shutil.rmtree(folder)

assert glob.glob("ck/checkpoint-*") == ["ck/checkpoint-2"]
assert torch.load("ck/checkpoint-2/model.pt")["weight"].shape == (512, 1024)
print("DONE")
