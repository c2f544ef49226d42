# torch.save of weights that were first copied to the host
import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

torch.save({name: value.cpu() for name, value in model.state_dict().items()}, "ck/model.pt")

assert torch.load("ck/model.pt")["weight"].shape == (512, 1024)
print("DONE")
