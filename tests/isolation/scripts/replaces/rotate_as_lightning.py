# the best and the last checkpoint, as Lightning's callback keeps them: each save removes the one it beats
import os

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

best = "ck/model.pt"
for step in range(2):
    path = f"ck/epoch={step}-step={step}.ckpt"
    torch.save(
        {"state_dict": model.state_dict(), "optimizer_states": [optimizer.state_dict()], "epoch": step}, path
    )
    os.remove(best)
    best = path
torch.save({"state_dict": model.state_dict(), "epoch": 1}, "ck/last.ckpt")

assert not os.path.exists("ck/model.pt")
assert not os.path.exists("ck/epoch=0-step=0.ckpt")
assert torch.load(best)["epoch"] == torch.load("ck/last.ckpt")["epoch"] == 1
print("DONE")
