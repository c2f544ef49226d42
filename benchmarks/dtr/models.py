"""The models the rematerialisation races train, written plainly in torch, with checkpointing as a switch.

`segments` is how many pieces `torch.utils.checkpoint` cuts the blocks into; 0 trains without it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

__all__ = ["GPT", "ResNet50"]


class _Cut(nn.Module):
    """Blocks in a row, checkpointed in so many segments."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.segments = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.segments:
            return self._run(0, len(self.blocks), x)
        size = -(-len(self.blocks) // self.segments)
        for start in range(0, len(self.blocks), size):
            x = checkpoint(self._run, start, min(start + size, len(self.blocks)), x, use_reentrant=False)
        return x

    def _run(self, start: int, end: int, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks[start:end]:
            x = block(x)
        return x


class Bottleneck(nn.Module):
    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__()
        n_out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(n_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, n_out, 1, bias=False), nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        is_same = n_in == n_out and stride == 1
        self.downsample = None if is_same else nn.Sequential(
            nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks: list[nn.Module] = []
        n_in = 64
        for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(depth):
                blocks.append(Bottleneck(n_in, width, stride if i == 0 else 1))
                n_in = 4 * width
        self.trunk = _Cut(blocks)
        self.head = nn.Linear(n_in, 1000)

    def forward(self, image: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.trunk(self.stem(image)).mean((2, 3))), target)


class Block(nn.Module):
    def __init__(self, width: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """The output layer shares its weight with the embedding."""

    def __init__(self, width: int = 512, depth: int = 8, n_heads: int = 8, length: int = 512, vocabulary: int = 4096,
                 dropout: float = 0.1) -> None:  # fmt: skip
        super().__init__()
        self.embedding, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.trunk = _Cut([Block(width, n_heads, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(
            self.embedding.weight, std=0.02
        )  # as large as torch makes it, logits and gradients underflow

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        logits = self.norm(self.trunk(x)) @ self.embedding.weight.T
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())
