"""Trains until it is stopped."""

import torch

weight = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
optimizer = torch.optim.Adam([weight])
step = 0
while True:
    weight.pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step == 3:
        print("three steps", flush=True)
