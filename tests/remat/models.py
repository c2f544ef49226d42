"""Small models of many kinds, each with the batches it is trained on.

NAMES ──> make(name) ──> Task(model, batches, loss)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

MODELS: dict[str, Callable[[], Task]] = {}


@dataclass
class Task:
    """A model, and the loss of it on the n-th batch."""

    model: nn.Module
    loss: Callable[[nn.Module, int], torch.Tensor]


def make(name: str) -> Task:
    torch.manual_seed(0)
    return MODELS[name]()


def _model(function: Callable[[], Task]) -> Callable[[], Task]:
    MODELS[function.__name__] = function
    return function


def _seeded(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + step)


@_model
def mlp() -> Task:
    widths = [64, *[128] * 8, 10]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.GELU(), nn.Dropout(0.1)]
    return Task(nn.Sequential(*layers[:-2]), _classify((512, 64)))


def _classify(shape: tuple[int, ...]) -> Callable[[nn.Module, int], torch.Tensor]:
    def loss(model: nn.Module, step: int) -> torch.Tensor:
        x = torch.randn(shape, generator=_seeded(step))
        target = torch.randint(10, shape[:1], generator=_seeded(step))
        return F.cross_entropy(model(x), target)

    return loss


class Bottleneck(nn.Module):
    """He et al., 2016, with the stride in the middle."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.relu(y)


@_model
def resnet50() -> Task:
    """All 50 layers, an eighth as wide, so that activations outweigh weights on tiny images."""
    width, channels = 8, 8
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
    ]  # fmt: skip
    for stage, depth in enumerate((3, 4, 6, 3)):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            layers.append(Bottleneck(channels, width << stage, stride))
            channels = 4 * (width << stage)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return Task(nn.Sequential(*layers), _classify((4, 3, 32, 32)))


@_model
def cnn() -> Task:
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 16), (16, 32), (32, 32)):
        layers += [
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Dropout2d(0.2),
        ]
    layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(32 * 64, 10)]
    return Task(nn.Sequential(*layers), _classify((16, 3, 16, 16)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            each.view(batch, length, self.heads, -1).transpose(1, 2)
            for each in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
        x = x + F.dropout(self.out(y.transpose(1, 2).reshape(x.shape)), 0.1, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1, self.training)


class Gpt(nn.Module):
    def __init__(
        self, vocabulary: int = 256, width: int = 64, heads: int = 4, depth: int = 6, length: int = 64
    ):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight  # tied

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        x = F.dropout(x, 0.1, self.training)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _next_token(model: nn.Module, step: int) -> torch.Tensor:
    ids = torch.randint(256, (4, 65), generator=_seeded(step))
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


@_model
def gpt() -> Task:
    return Task(Gpt(), _next_token)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 64, num_layers=3, dropout=0.2, batch_first=True)
        self.cell = nn.LSTMCell(64, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.lstm(x)
        state = (torch.zeros(len(x), 64), torch.zeros(len(x), 64))
        for each in y.unbind(1):
            state = self.cell(each, state)
        return self.head(state[0])


@_model
def lstm() -> Task:
    return Task(Lstm(), _classify((64, 24, 32)))


def _transformers_loss(model: Any, step: int) -> torch.Tensor:
    ids = torch.randint(200, (4, 48), generator=_seeded(step))
    return model(input_ids=ids, labels=ids).loss


@_model
def bert() -> Task:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256
    )
    return Task(BertForMaskedLM(config), _transformers_loss)


@_model
def qwen2() -> Task:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=200, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=192, use_cache=False,
    )  # fmt: skip
    return Task(Qwen2ForCausalLM(config), _transformers_loss)


def state_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Everything a step may change: weights, buffers and gradients."""
    for name, tensor in model.state_dict().items():
        yield name, tensor.detach().clone()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield f"{name}.grad", parameter.grad.clone()
