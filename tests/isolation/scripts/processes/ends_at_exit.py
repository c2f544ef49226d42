# what is left to the end of the interpreter: a handler that deletes
import atexit
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


@atexit.register
def clean_up():
    shutil.rmtree("ck/old")
    os.remove("ck/optimizer.pt")
    assert not os.path.exists("ck/old")
    print("DONE")
