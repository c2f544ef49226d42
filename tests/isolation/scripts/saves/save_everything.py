# one dictionary with model, optimizer and step, as most hand-written loops save it
import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 2}, "ck/model.pt")

saved = torch.load("ck/model.pt", map_location="cpu")
assert saved["step"] == 2
model.load_state_dict(saved["model"])
optimizer.load_state_dict(saved["optimizer"])
print("DONE")
