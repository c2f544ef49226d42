"""Three small training programs in plain torch, for tools that collect from them: windtunnel is not imported here.

name ──> (model, function that computes a loss)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["NAMES", "build"]

_WIDTH, _HEADS, _LAYERS, _TOKENS, _BATCH, _WORDS = 256, 4, 4, 128, 8, 1000


def build(name: str) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Create a model and its loss on one fixed batch."""
    torch.manual_seed(0)
    return _MODELS[name]()


def _mlp() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    layers = [
        nn.Linear(784, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
    ]
    model = nn.Sequential(*layers, nn.Linear(1024, 10))
    x, y = torch.randn(128, 784), torch.randint(0, 10, (128,))
    return model, lambda: F.cross_entropy(model(x), y)


def _cnn() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    def stage(n_in: int, n_out: int) -> list[nn.Module]:
        found: list[nn.Module] = []
        for channels in (n_in, n_out):
            found += [nn.Conv2d(channels, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]
        return [*found, nn.MaxPool2d(2)]

    body = [*stage(3, 32), *stage(32, 64), *stage(64, 128)]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    return model, lambda: F.cross_entropy(model(x), y)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, _HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (torch.matmul(q, k.transpose(-2, -1)) / q.shape[-1] ** 0.5).masked_fill(mask, float("-inf"))
        mixed = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, _WIDTH))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attention = _Attention()
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.positions = nn.Parameter(torch.zeros(1, _TOKENS, _WIDTH))
        self.blocks = nn.ModuleList(_Block() for _ in range(_LAYERS))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.triu(torch.ones(_TOKENS, _TOKENS, dtype=torch.bool), 1)
        x = self.words(tokens) + self.positions
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def _transformer() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    model = _Transformer()
    x, y = torch.randint(0, _WORDS, (_BATCH, _TOKENS)), torch.randint(0, _WORDS, (_BATCH, _TOKENS))
    return model, lambda: F.cross_entropy(model(x).view(-1, _WORDS), y.view(-1))


_MODELS = {"mlp": _mlp, "transformer": _transformer, "cnn": _cnn}
NAMES = tuple(_MODELS)
