# a process that leaves its session writes and deletes after the script ended
import os
import shutil
import time

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

if os.fork() == 0:
    os.setsid()
    os.close(1)
    os.close(2)
    time.sleep(1.5)
    shutil.rmtree("ck/old")
    with open("ck/best.json", "w") as f:
        f.write("{}")
    os._exit(0)
print("DONE")
