# torch.distributed.checkpoint.async_save, which writes from a thread of its own
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

dist.init_process_group("cpu:gloo,cuda:nccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
dcp.async_save({"model": model.state_dict()}, checkpoint_id="ck/dcp").result()
dist.destroy_process_group()

state = {"model": model.state_dict()}
dcp.load(state, checkpoint_id="ck/dcp", no_dist=True)
assert state["model"]["weight"].shape == (512, 1024)
print("DONE")
