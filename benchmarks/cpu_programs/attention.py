"""TransformerEncoder and MultiheadAttention, fused AdamW, an averaged copy, evaluation between steps."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu", norm_first=True)
encoder = nn.TransformerEncoder(layer, 2)
attention = nn.MultiheadAttention(64, 4, batch_first=True)
head = nn.Linear(64, 1)
parameters = [*encoder.parameters(), *attention.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(parameters, fused=True)
average = copy.deepcopy(encoder)
for _ in range(3):
    mask = torch.zeros(4, 16, dtype=torch.bool)
    hidden = encoder(torch.randn(4, 16, 64), src_key_padding_mask=mask)
    hidden, _ = attention(hidden, hidden, hidden)
    loss = head(hidden).sigmoid().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for kept, new in zip(average.parameters(), encoder.parameters(), strict=True):
            kept.mul_(0.9).add_(new, alpha=0.1)
        encoder.eval()
        encoder(torch.randn(2, 16, 64))
        encoder.train()
