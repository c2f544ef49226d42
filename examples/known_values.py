"""A script that depends on values: windtunnel.mock sets them in a dry run, and does nothing in a real one.

windtunnel run examples/known_values.py
"""

import torch
from torch import nn

import windtunnel

router, expert = nn.Linear(256, 8).cuda(), nn.Linear(256, 1024).cuda()
optimizer = torch.optim.SGD([*router.parameters(), *expert.parameters()], lr=0.1)
for _ in range(3):
    tokens = torch.randn(4096, 256, device="cuda")
    chosen = router(tokens).argmax(-1) == 0
    # without values, the number of tokens for this expert is unknown; a balanced router would send 4096 / 8
    n_tokens = windtunnel.mock(512, lambda chosen=chosen: int(chosen.sum()))
    out = expert(tokens[:n_tokens])
    (out.square().mean() + router(tokens).square().mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
print("tokens of this expert:", n_tokens)
