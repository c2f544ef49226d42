# a checkpoint is loaded, trained on and saved where it came from
import torch
from torch import nn

model = nn.Linear(64, 64).cuda()
model.load_state_dict(torch.load("ck/model.pt", map_location="cuda"))
model(torch.randn(8, 64, device="cuda")).sum().backward()
torch.save(model.state_dict(), "ck/model.pt")

assert torch.load("ck/model.pt")["weight"].shape == (64, 64)
print("DONE")
