# a file that is write-protected is made writable, written and protected again
import os

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

os.chmod("ck/frozen.pt", 0o644)
torch.save(model.state_dict(), "ck/frozen.pt")
os.chmod("ck/frozen.pt", 0o444)

assert torch.load("ck/frozen.pt")["weight"].shape == (512, 1024)
assert os.stat("ck/frozen.pt").st_mode & 0o777 == 0o444
print("DONE")
