# the script goes into another folder and uses names relative to it
import os

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

os.chdir("ck/checkpoint-100")
torch.save(model.state_dict(), "model.pt")
os.remove("../old/model.pt")
os.replace("scheduler.pt", "../old/optimizer.pt")

assert torch.load("model.pt")["weight"].shape == (512, 1024)
assert os.listdir("../old") == ["optimizer.pt"]
os.chdir("../..")
assert not os.path.exists("ck/old/model.pt")
print("DONE")
