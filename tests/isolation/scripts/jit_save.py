# a scripted module saved by TorchScript's own writer
import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

torch.jit.save(torch.jit.script(nn.Linear(16, 16)), "ck/model.pt")

assert torch.jit.load("ck/model.pt").weight.shape == (16, 16)
print("DONE")
