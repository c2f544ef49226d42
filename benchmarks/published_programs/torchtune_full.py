"""Finetune all of Llama 3.2 3B on one GPU as torchtune does: python torchtune_full.py --chunked-loss --checkpointing

Bfloat16 parameters and states, a packed data set (every row is full), float32 inside norms and rotary positions, a tied
head. Options are the steps of the ladder in torchtune's README. Layers are compiled one by one, under their checkpoint;
of a loss in chunks, what computes one chunk. Sources: torchtune of November 2024, modules/{attention,rms_norm,
position_embeddings,transformer}.py, modules/loss, training/_compile.py, recipes/full_finetune_single_device.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS = 128256, 3072, 8192, 28, 24, 8
HEAD = WIDTH // HEADS


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x)
        return scaled * self.scale


def rotate(x: Tensor, cache: Tensor) -> Tensor:
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    cache = cache[: x.shape[1]].view(-1, pairs.shape[1], 1, pairs.shape[3], 2)
    turned = torch.stack(
        [
            pairs[..., 0] * cache[..., 0] - pairs[..., 1] * cache[..., 1],
            pairs[..., 1] * cache[..., 0] + pairs[..., 0] * cache[..., 1],
        ],
        -1,
    )
    return turned.flatten(3).type_as(x)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sa_norm, self.mlp_norm = RMSNorm(), RMSNorm()
        self.q_proj = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.output_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.w1 = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, HIDDEN, bias=False)

    def attend(self, x: Tensor, cache: Tensor) -> Tensor:
        q, k, v = (proj(x).unflatten(-1, (-1, HEAD)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = rotate(q, cache).transpose(1, 2), rotate(k, cache).transpose(1, 2), v.transpose(1, 2)
        k, v = (t.unsqueeze(2).expand(-1, -1, HEADS // KV_HEADS, -1, -1).flatten(1, 2) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output_proj(out.transpose(1, 2).contiguous().flatten(2))

    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        x = self.attend(self.sa_norm(x), cache) + x
        normed = self.mlp_norm(x)
        return x + self.w2(F.silu(self.w1(normed)) * self.w3(normed))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = RMSNorm()

    def forward(self, tokens: Tensor, cache: Tensor, args: argparse.Namespace) -> Tensor | list[Tensor]:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, cache, use_reentrant=False) if args.checkpointing else layer(x, cache)
        x = self.norm(x)
        if args.chunked_loss:
            return [F.linear(part, self.tok_embeddings.weight) for part in x.chunk(8, dim=1)]
        return F.linear(x, self.tok_embeddings.weight).float()


def rotations(length: int) -> Tensor:
    theta = 1.0 / 500000.0 ** (torch.arange(0, HEAD, 2, device="cuda").float() / HEAD)
    angles = torch.outer(torch.arange(length, device="cuda").float(), theta)
    return torch.stack([torch.cos(angles), torch.sin(angles)], dim=-1)


def sum_of_losses(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels, reduction="sum")


def loss_of_chunks(sum_of_losses: Callable[..., Tensor], parts: list[Tensor], labels: Tensor) -> Tensor:
    chunks = [chunk.reshape(-1) for chunk in labels.chunk(len(parts), dim=1)]
    flat = [part.reshape(-1, VOCABULARY) for part in parts]
    total = sum(sum_of_losses(part, label) for part, label in zip(flat, chunks, strict=True))
    return total / labels.numel()


def build_loss(args: argparse.Namespace) -> Callable[..., Tensor]:
    """The recipe compiles the loss but drops the result, so only what is compiled in place runs compiled."""
    if args.chunked_loss:
        return partial(loss_of_chunks, torch.compile(sum_of_losses) if args.compile else sum_of_losses)
    cross_entropy = nn.CrossEntropyLoss()
    return lambda logits, labels: cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))


def optimize_in_backward(model: nn.Module) -> None:
    """A parameter is updated, and its gradient freed, as soon as that gradient is ready."""
    optimizers = {param: torch.optim.AdamW([param], lr=2e-5, fused=True) for param in model.parameters()}

    def update(param: Tensor) -> None:
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(update)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--chunked-loss", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--optimizer-in-backward", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args(words)


def main() -> None:
    args = parse()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Llama()
    torch.set_default_dtype(torch.float32)
    print(f"n_params {sum(p.numel() for p in model.parameters())}", flush=True)
    optimizer = None
    if args.optimizer_in_backward:
        optimize_in_backward(model)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    if args.compile:
        for layer in model.layers:
            layer.compile()
    loss_fn = build_loss(args)
    cache = rotations(args.seq_len)
    for step in range(args.steps):
        data = torch.randint(0, VOCABULARY, (args.batch, args.seq_len + 1))
        tokens, labels = data[:, :-1].contiguous().cuda(), data[:, 1:].contiguous().cuda()
        logits = model(tokens, cache, args)
        loss = loss_fn(logits, labels)
        del logits
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
