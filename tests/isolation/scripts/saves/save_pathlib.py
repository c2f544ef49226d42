# torch.save to a pathlib.Path, an old file and a new one
from pathlib import Path

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

folder = Path("ck")
torch.save(model.state_dict(), folder / "model.pt")
torch.save(optimizer.state_dict(), folder / "checkpoint-100" / "new.pt")

assert torch.load(folder / "model.pt")["weight"].shape == (512, 1024)
assert torch.load(folder / "checkpoint-100" / "new.pt")["state"][0]["exp_avg"].shape == (512, 1024)
print("DONE")
