# torch.save to a file that the script opened
import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

with open("ck/model.pt", "wb") as f:
    torch.save(model.state_dict(), f)

with open("ck/model.pt", "rb") as f:
    assert torch.load(f)["weight"].shape == (512, 1024)
print("DONE")
