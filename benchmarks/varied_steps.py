"""A small training run whose every step is different: sequences of random length, so that little repeats in its report.

windtunnel run benchmarks/varied_steps.py --steps 100
"""

import argparse
import random

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
args = parser.parse_args()

random.seed(0)
layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.1)
model = nn.Sequential(
    nn.TransformerEncoder(layer, 24, enable_nested_tensor=False), nn.Linear(1024, 1000)
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(args.steps):
    tokens = torch.randn(random.randint(1, 16), random.randint(16, 2048), 1024, device="cuda")
    model(tokens).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
