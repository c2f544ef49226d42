# torch.distributed.checkpoint.save into a folder that holds one
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

dcp.save({"model": model.state_dict()}, checkpoint_id="ck/dcp")

state = {"model": model.state_dict()}
dcp.load(state, checkpoint_id="ck/dcp")
assert state["model"]["weight"].shape == (512, 1024)
print("DONE")
