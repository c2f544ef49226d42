# pickle.dump of the state of a loop
import pickle

import torch
from torch import nn

model = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()

state = {"step": 2, "shapes": {name: tuple(value.shape) for name, value in model.state_dict().items()}}
with open("ck/state.pickle", "wb") as f:
    pickle.dump(state, f)

with open("ck/state.pickle", "rb") as f:
    assert pickle.load(f) == state
print("DONE")
