"""Train GPT-2 124M as nanoGPT does on one GPU: python nanogpt.py --micro-batch 12 --accumulate 1

Autocast to bfloat16, tied head, no biases by default, fused AdamW, clipped gradients when training (bench.py has
neither clipping nor accumulation). Source: karpathy/nanoGPT, model.py, train.py, bench.py.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, LAYERS = 50304, 768, 12, 12


class LayerNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class Attention(nn.Module):
    def __init__(self, is_flash: bool) -> None:
        super().__init__()
        self.is_flash = is_flash
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.c_attn(x).split(WIDTH, dim=2)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in parts)
        if self.is_flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / k.shape[-1] ** 0.5)
            mask = torch.ones(x.shape[1], x.shape[1], device=x.device).tril()
            y = F.softmax(scores.masked_fill(mask == 0, float("-inf")), dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().flatten(2))


class Block(nn.Module):
    def __init__(self, is_flash: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = LayerNorm(), LayerNorm()
        self.attn = Attention(is_flash)
        self.c_fc = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.c_proj = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, block_size: int, is_flash: bool) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(block_size, WIDTH)
        self.h = nn.ModuleList(Block(is_flash) for _ in range(LAYERS))
        self.ln_f = LayerNorm()
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1), ignore_index=-1)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro-batch", type=int, default=12)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--block-size", type=int, default=1024)
    parser.add_argument("--attention", choices=("flash", "plain"), default="flash")
    parser.add_argument("--optimizer", choices=("fused", "foreach"), default="fused")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args(words)


def main() -> None:
    args = parse()
    torch.backends.cuda.matmul.allow_tf32 = True
    model = GPT(args.block_size, args.attention == "flash").cuda()
    print(f"n_params {sum(p.numel() for p in model.parameters())}", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), **{args.optimizer: True})
    step_of = torch.compile(model) if args.compile else model
    for step in range(args.steps):
        for _ in range(args.accumulate):
            data = torch.randint(0, VOCABULARY, (args.micro_batch, args.block_size + 1))
            tokens, targets = data[:, :-1].contiguous().cuda(), data[:, 1:].contiguous().cuda()
            with torch.autocast("cuda", torch.bfloat16):
                loss = step_of(tokens, targets) / args.accumulate
            loss.backward()
        if args.accumulate > 1:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
