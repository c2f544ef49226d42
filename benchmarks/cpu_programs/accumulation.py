"""Gradient accumulation over micro-batches from a DataLoader, with a learning-rate schedule."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 4))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
loader = DataLoader(
    TensorDataset(torch.randn(256, 64), torch.randint(0, 4, (256,))), batch_size=16, shuffle=True
)
for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y) / 4
    loss.backward()
    if i % 4 == 3:
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
