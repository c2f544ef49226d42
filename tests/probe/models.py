"""Small models and training programs for the tests of the probe; they need torch and nothing else.

build("cnn") ──> model, function of the step number that gives the loss
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

__all__ = ["PROGRAMS", "build", "train"]

Loss = Callable[[int], torch.Tensor]
WIDTH, HEADS, LAYERS, LENGTH, BATCH, VOCABULARY = 16, 2, 2, 6, 2, 20


def build(name: str) -> tuple[nn.Module, Loss]:
    """Make a model and its loss, the same one each time."""
    torch.manual_seed(0)
    return PROGRAMS[name]()


def train(model: nn.Module, loss: Loss, n_steps: int, around: Callable | None = None) -> list[torch.Tensor]:
    """Train for some steps; `around(step)` is a context manager for each."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for step in range(n_steps):
        optimizer.zero_grad()
        if around is None:
            value = _step(loss, step, optimizer)
        else:
            with around(step):
                value = _step(loss, step, optimizer)
        losses.append(value)
    return losses


def _step(loss: Loss, step: int, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    value = loss(step)
    value.backward()
    optimizer.step()
    return value.detach()


def _classify(model: nn.Module, *shape: int, n_classes: int = 5) -> tuple[nn.Module, Loss]:
    batches = [(torch.randn(*shape), torch.randint(0, n_classes, shape[:1])) for _ in range(4)]
    return model, lambda step: F.cross_entropy(model(batches[step % 4][0]), batches[step % 4][1])


def _mlp() -> tuple[nn.Module, Loss]:
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))
    return _classify(model, 4, 12)


def _cnn() -> tuple[nn.Module, Loss]:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    )
    return _classify(model, 2, 3, 8, 8)


def _dropout() -> tuple[nn.Module, Loss]:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(144, 5)
    )
    return _classify(model, 2, 3, 8, 8)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.matmul(q, k.transpose(-2, -1)) / (WIDTH // HEADS) ** 0.5
        weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        return self.out(torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, mask):
        x = x + self.attn(self.ln1(x), mask)
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class Transformer(nn.Module):
    def __init__(self, is_checkpointed: bool = False, is_tied: bool = False) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.pos = nn.Parameter(torch.zeros(1, LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.lnf = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if is_tied:
            self.head.weight = self.emb.weight
        self.is_checkpointed = is_checkpointed

    def forward(self, tokens):
        mask = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)
        x = self.emb(tokens) + self.pos
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False) if self.is_checkpointed else block(x, mask)
        return self.head(self.lnf(x))


def _transformer(**options: bool) -> tuple[nn.Module, Loss]:
    model = Transformer(**options)
    tokens, labels = (torch.randint(0, VOCABULARY, (BATCH, LENGTH)) for _ in range(2))
    return model, lambda step: F.cross_entropy(model(tokens).view(-1, VOCABULARY), labels.view(-1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, dropout=0.2)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.lstm(x.transpose(0, 1))[0][-1])


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.ReLU(inplace=True), nn.Linear(16, 16))
        self.tail = nn.Sequential(nn.Dropout(0.2, inplace=True), nn.Linear(16, 5))

    def forward(self, x):
        h = self.body(x)
        h += 1.0
        h.mul_(0.5)
        h[:, 0] = 0.0
        return self.tail(h)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 12)
        self.again = self.layer
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        h = self.layer(x)
        return self.head(self.again(h) + h + torch.tanh(self.layer(h)))


def _lowered() -> tuple[nn.Module, Loss]:
    model, loss = _mlp()

    def lowered(step: int) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(step)

    return model, lowered


PROGRAMS: dict[str, Callable[[], tuple[nn.Module, Loss]]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "transformer": _transformer,
    "dropout": _dropout,
    "lstm": lambda: _classify(Recurrent(), 3, 4, 6),
    "checkpointed": lambda: _transformer(is_checkpointed=True),
    "in_place": lambda: _classify(InPlace(), 4, 12),
    "autocast": _lowered,
    "shared": lambda: _classify(Shared(), 4, 12),
    "tied": lambda: _transformer(is_tied=True),
}
