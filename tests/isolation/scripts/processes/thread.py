# a thread saves and rotates while the script goes on
import os
import shutil
import threading

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()


def save():
    torch.save(model.state_dict(), "ck/model.pt")
    shutil.rmtree("ck/old")


thread = threading.Thread(target=save)
thread.start()
thread.join()

assert not os.path.exists("ck/old")
assert torch.load("ck/model.pt")["weight"].shape == (512, 1024)
print("DONE")
