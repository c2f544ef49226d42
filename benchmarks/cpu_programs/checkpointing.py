"""Gradient checkpointing, both kinds, around transformer encoder layers."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
layers = nn.ModuleList(
    nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True) for _ in range(4)
)
head = nn.Linear(128, 50)
optimizer = torch.optim.AdamW([*layers.parameters(), *head.parameters()], lr=1e-3)
for step in range(4):
    x = torch.randn(8, 64, 128, requires_grad=True)
    for i, layer in enumerate(layers):
        x = checkpoint(layer, x, use_reentrant=i % 2 == 0)
    loss = nn.functional.cross_entropy(head(x).flatten(0, 1), torch.randint(0, 50, (8 * 64,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
