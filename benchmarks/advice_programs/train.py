"""A training script for `benchmarks.advice_followed`: one of several models, and every piece of advice as an option.

python train.py gpt --batch-size 8 [--checkpointed blocks.0-5] [--chunk-loss]
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

N_CLASSES = 32_000
SEQUENCE = 512


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument(
        "--checkpointed", default="", help="PREFIX.FIRST-LAST: blocks that run under a checkpoint"
    )
    parser.add_argument("--chunk-loss", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args()


class Block(nn.Module):
    """Attention and an MLP, each preceded by a norm."""

    def __init__(self, width: int, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv, is_causal=self.is_causal)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Experts(nn.Module):
    """A block whose MLP is one of four for each half of the tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = self.norm(x).flatten(0, 1)
        weights = self.router(flat).softmax(-1)
        parts = flat.chunk(4)
        made = [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
        return x + (torch.cat(made) * weights.amax(-1, keepdim=True)).view_as(x)


class Language(nn.Module):
    """Tokens in, a loss over classes out: GPT, BERT and a mixture of experts."""

    def __init__(self, blocks: list[nn.Module], width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CLASSES, width)
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, N_CLASSES, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for i, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if f"blocks.{i}" in CHECKPOINTED else block(x)
        x, labels = self.norm(x).flatten(0, 1), tokens.flatten()
        if not OPTIONS.chunk_loss:
            return F.cross_entropy(self.head(x), labels)
        pieces = zip(x.chunk(8), labels.chunk(8), strict=True)
        losses = [checkpoint(self._loss_of, piece, wanted, use_reentrant=False) for piece, wanted in pieces]
        return torch.stack(losses).sum() / len(labels)

    def _loss_of(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(x), labels, reduction="sum")


class Vision(nn.Module):
    """Patches, blocks, a mean."""

    def __init__(self, width: int, n_blocks: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.ModuleList(Block(width, is_causal=False) for _ in range(n_blocks))
        self.head = nn.Linear(width, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        for i, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if f"blocks.{i}" in CHECKPOINTED else block(x)
        return self.head(x.mean(1)).square().mean()


class Bottleneck(nn.Module):
    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(n_in, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        is_same = n_in == 4 * width and stride == 1
        self.side = nn.Identity() if is_same else nn.Conv2d(n_in, 4 * width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.side(x))


class Residual(nn.Module):
    """ResNet-50's blocks in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks, n_in = [], 64
        for width, n_blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for i in range(n_blocks):
                blocks.append(Bottleneck(n_in, width, 2 if i == 0 and width > 64 else 1))
                n_in = 4 * width
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(n_in, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        for i, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if f"blocks.{i}" in CHECKPOINTED else block(x)
        return self.head(x.mean((2, 3))).square().mean()


class Llama(nn.Module):
    """The model of transformers, which checkpoints its layers itself."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=N_CLASSES, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
            num_attention_heads=16, num_key_value_heads=8,
        )  # fmt: skip
        self.inner = LlamaForCausalLM(config)
        if CHECKPOINTED:
            self.inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            for i, layer in enumerate(self.inner.model.layers):
                layer.gradient_checkpointing = f"inner.model.layers.{i}" in CHECKPOINTED

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if not OPTIONS.chunk_loss:
            return self.inner(input_ids=tokens, labels=tokens).loss
        x = self.inner.model(input_ids=tokens).last_hidden_state.flatten(0, 1)
        labels = F.pad(tokens, (0, 1), value=-100)[
            :, 1:
        ].flatten()  # shifted as in transformers: x is not copied
        pieces = zip(x.chunk(8), labels.chunk(8), strict=True)
        losses = [checkpoint(self._loss_of, piece, wanted, use_reentrant=False) for piece, wanted in pieces]
        return torch.stack(losses).sum() / (labels != -100).sum()

    def _loss_of(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.inner.lm_head(x).float(), labels, reduction="sum")


MODELS = {
    "gpt": lambda: Language([Block(1024, is_causal=True) for _ in range(12)], 1024),
    "bert": lambda: Language([Block(768, is_causal=False) for _ in range(12)], 768),
    "moe": lambda: Language([Experts(768) for _ in range(6)], 768),
    "vit": lambda: Vision(768, 12),
    "resnet": Residual,
    "llama": Llama,
}


def data(model: str, size: int) -> torch.Tensor:
    if model in ("vit", "resnet"):
        return torch.randn(size, 3, 224, 224, device="cuda")
    return torch.randint(0, N_CLASSES, (size, SEQUENCE), device="cuda")


def main() -> None:
    model = MODELS[OPTIONS.model]().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    for _ in range(OPTIONS.steps):
        with torch.autocast("cuda", dtype=dtype):
            loss = model(data(OPTIONS.model, OPTIONS.batch_size))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def checkpointed(text: str) -> frozenset[str]:
    prefix, _, numbers = text.rpartition(".")
    first, _, last = numbers.partition("-")
    return (
        frozenset(f"{prefix}.{i}" for i in range(int(first), int(last or first) + 1)) if text else frozenset()
    )


OPTIONS = parse()
CHECKPOINTED = checkpointed(OPTIONS.checkpointed)
main()
