# torch.save into memory, the bytes then written as any others
import io

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

buffer = io.BytesIO()
torch.save(model.state_dict(), buffer)
with open("ck/model.pt", "wb") as f:
    f.write(buffer.getvalue())

assert torch.load("ck/model.pt")["weight"].shape == (512, 1024)
print("DONE")
