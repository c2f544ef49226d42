# safetensors.torch.save, the bytes written by the script
import torch
from safetensors.torch import load_file, save
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

with open("ck/model.safetensors", "wb") as f:
    f.write(save(model.state_dict()))

assert load_file("ck/model.safetensors")["weight"].shape == (512, 1024)
print("DONE")
