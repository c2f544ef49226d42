"""L-BFGS: its history of directions grows while it iterates."""

import torch
from torch import nn

torch.manual_seed(0)
inputs, targets = torch.randn(256, 40), torch.randn(256, 3)
model = nn.Sequential(nn.Linear(40, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 3))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=8, history_size=10)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    return loss


for step in range(3):
    optimizer.step(closure)
