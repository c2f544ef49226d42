# lines added to a log
import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

with open("ck/log.txt", "a") as f:
    f.write("step 101\n")

with open("ck/log.txt") as f:
    assert f.read() == "step 98\nstep 99\nstep 100\nstep 101\n"
print("DONE")
