# rm -rf of a folder
import os
import subprocess

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

subprocess.run(["rm", "-rf", "ck/old"], check=True)

assert not os.path.exists("ck/old")
print("DONE")
