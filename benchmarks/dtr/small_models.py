"""Small models of six kinds, written plainly in torch: a step of each takes milliseconds.

name ──> SMALL_MODELS[name]() ──> a module whose call on nothing makes its own batch and returns the loss
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["SMALL_MODELS"]


def _images(n: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 3, size, size), torch.randint(0, 10, (n,))


class _Encoder(nn.Module):
    """Attention and a perceptron, each normalised before (ViT) or after it (BERT)."""

    def __init__(self, width: int, n_heads: int, *, normalises_first: bool) -> None:
        super().__init__()
        self.n_heads, self.normalises_first = n_heads, normalises_first
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.normalises_first:
            x = x + self.dropout(self._attend(self.norm1(x)))
            return x + self.dropout(self._transform(self.norm2(x)))
        x = self.norm1(x + self.dropout(self._attend(x)))
        return self.norm2(x + self.dropout(self._transform(x)))

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        """Written out: scores and probabilities are activations too."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * (width // self.n_heads) ** -0.5
        mixed = self.dropout(scores.softmax(-1)) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def _transform(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class ViT(nn.Module):
    def __init__(self, width: int = 64, depth: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(torch.zeros(1, 64, width))
        self.blocks = nn.Sequential(*[_Encoder(width, 4, normalises_first=True) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self) -> torch.Tensor:
        images, target = _images(8, 32)
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return F.cross_entropy(self.head(self.norm(self.blocks(x)).mean(1)), target)


class Bert(nn.Module):
    def __init__(self, width: int = 64, depth: int = 4, vocabulary: int = 200) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(48, width)
        self.blocks = nn.Sequential(*[_Encoder(width, 4, normalises_first=False) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self) -> torch.Tensor:
        words = torch.randint(0, 200, (8, 48))
        x = F.dropout(self.norm(self.words(words) + self.places(torch.arange(48))), 0.1)
        return F.cross_entropy(self.head(self.blocks(x)).flatten(0, 1), words.flatten())


def _double(before: int, after: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for n_in in (before, after):
        parts += [nn.Conv2d(n_in, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    """Skips that the program itself holds until the way up."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(
            [_double(3, width), _double(width, widths[1]), _double(widths[1], widths[2])]
        )
        self.bottom = _double(widths[2], 8 * width)
        self.grow = nn.ModuleList([nn.ConvTranspose2d(2 * each, each, 2, 2) for each in reversed(widths)])
        self.up = nn.ModuleList([_double(2 * each, each) for each in reversed(widths)])
        self.head = nn.Conv2d(width, 10, 1)

    def forward(self) -> torch.Tensor:
        images, _ = _images(4, 32)
        skips, x = [], images
        for part in self.down:
            skips.append(part(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for grow, part in zip(self.grow, self.up, strict=True):
            x = part(torch.cat([grow(x), skips.pop()], 1))
        return F.cross_entropy(self.head(x), torch.randint(0, 10, (4, 32, 32)))


class Gru(nn.Module):
    """Gates written out, step by step: long chains of small values."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.read, self.recall = nn.Linear(32, 3 * width), nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, 10)

    def forward(self) -> torch.Tensor:
        rows, target = torch.randn(64, 24, 32), torch.randint(0, 10, (64,))
        state = torch.zeros(64, self.recall.in_features)
        for each in rows.unbind(1):
            reset, update, new = self.read(each).chunk(3, 1)
            old_reset, old_update, old_new = self.recall(state).chunk(3, 1)
            update = torch.sigmoid(update + old_update)
            candidate = torch.tanh(new + torch.sigmoid(reset + old_reset) * old_new)
            state = (1 - update) * candidate + update * state
        return F.cross_entropy(self.head(state), target)


class MixtureOfExperts(nn.Module):
    """Each row goes to two of four experts: sizes depend on values, results are added in place."""

    def __init__(self, width: int = 64, depth: int = 4, n_experts: int = 4) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(depth)])
        self.gates = nn.ModuleList([nn.Linear(width, n_experts) for _ in range(depth)])
        self.experts = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
                for _ in range(n_experts)
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self) -> torch.Tensor:
        x, target = torch.randn(256, self.head.in_features), torch.randint(0, 10, (256,))
        for norm, gate, experts in zip(self.norms, self.gates, self.experts, strict=True):
            y = norm(x)
            weights, chosen = gate(y).softmax(-1).topk(2, -1)
            mixed = torch.zeros_like(y)
            for number, expert in enumerate(experts):
                row, place = (chosen == number).nonzero(as_tuple=True)
                mixed.index_add_(0, row, expert(y[row]) * weights[row, place, None])
            x = x + mixed
        return F.cross_entropy(self.head(x), target)


class _Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        widths = [width, width, width, 2 * width, 2 * width, 4 * width, 4 * width]
        self.blocks = nn.Sequential(*[_Residual(a, b, 1 if a == b else 2) for a, b in pairwise(widths)])
        self.head = nn.Linear(widths[-1], 10)

    def forward(self) -> torch.Tensor:
        images, target = _images(8, 32)
        return F.cross_entropy(self.head(self.blocks(self.stem(images)).mean((2, 3))), target)


SMALL_MODELS: dict[str, type[nn.Module]] = {
    "ViT": ViT,
    "BERT": Bert,
    "U-Net": UNet,
    "GRU": Gru,
    "MoE": MixtureOfExperts,
    "ResNet": ResNet,
}
