# only the two highest numbers are kept, which are real: a dry run restarts at a low one
import re
import shutil
from pathlib import Path

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

new = Path("ck/checkpoint-2")
new.mkdir()
torch.save(model.state_dict(), new / "model.pt")
folders = sorted(Path("ck").glob("checkpoint-*"), key=lambda path: int(re.findall(r"\d+", path.name)[0]))
for folder in folders[:-1]:
    shutil.rmtree(folder)

assert [path.name for path in Path("ck").glob("checkpoint-*")] == ["checkpoint-100"]
print("DONE")
