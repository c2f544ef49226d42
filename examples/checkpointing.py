"""The same model with and without activation checkpointing: compare two dry runs.

windtunnel run --out plain examples/checkpointing.py
windtunnel run --out checkpointed examples/checkpointing.py --checkpoint
"""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

layers = nn.ModuleList(nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True) for _ in range(8)).cuda()
optimizer = torch.optim.AdamW(layers.parameters(), fused=True)
for _ in range(3):
    x = torch.randn(16, 512, 1024, device="cuda")
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False) if "--checkpoint" in sys.argv else layer(x)
    x.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
