# safetensors.torch.save_file of weights on the device
import torch
from safetensors.torch import load_file, save_file
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

save_file(model.state_dict(), "ck/model.safetensors")

assert load_file("ck/model.safetensors")["weight"].shape == (512, 1024)
print("DONE")
