"""Where do two runs diverge? Train a small language model twice, once with a mistake, and compare what they computed.

    python examples/precision.py --dump good
    python examples/precision.py --dump bad --mistake
    windtunnel compare good bad

The mistake: the second block's layer norms have eps = 1e-3 instead of 1e-5, as after a port from another framework. The
losses of both runs are the same to two decimals; the dumps name the call and the line.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn

from windtunnel.pytorch import PrecisionDebugger, seed_all

WIDTH, HEADS, TOKENS, WORDS = 64, 4, 32, 128


class Block(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=eps), nn.LayerNorm(WIDTH, eps=eps)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, has_mistake: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(1e-3 if has_mistake and i == 1 else 1e-5) for i in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dump", required=True)
    parser.add_argument("--level", default="mix")
    parser.add_argument("--mistake", action="store_true")
    options = parser.parse_args()

    seed_all(1234)
    debugger = PrecisionDebugger(dump_path=options.dump, task="statistics", level=options.level, step=[0, 1])
    model = Model(options.mistake)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, WORDS, (4, TOKENS + 1))
    for step in range(2):
        debugger.start(model)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        debugger.stop()
        optimizer.step()
        optimizer.zero_grad()
        debugger.step()
        print(f"step {step}: loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
