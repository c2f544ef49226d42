# json.dump of the best step so far
import json

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

with open("ck/best.json", "w") as f:
    json.dump({"step": 2, "loss": 0.25}, f)

with open("ck/best.json") as f:
    assert json.load(f) == {"step": 2, "loss": 0.25}
print("DONE")
