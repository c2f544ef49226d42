# absolute names outside the working folder, as a cluster's scratch folder has them
import json
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

scratch = os.environ["SCRATCH"]
assert os.path.isabs(scratch)
torch.save(model.state_dict(), f"{scratch}/model.pt")
shutil.rmtree(f"{scratch}/runs")
with open(f"{scratch}/shared.json", "w") as f:
    json.dump({"who": "me"}, f)

assert torch.load(f"{scratch}/model.pt")["weight"].shape == (512, 1024)
assert sorted(os.listdir(scratch)) == ["model.pt", "shared.json"]
print("DONE")
