"""Finetune as litgpt does on one GPU, bfloat16 throughout: python litgpt_finetune.py --model llama-2-7b --micro-batch 2

One class for every architecture, as in litgpt: fused query, key and value, rotary positions on part of a head, parallel
or sequential residuals, a head that is applied in chunks of 128 tokens with a chunked loss. Either all parameters are
trained, or low rank factors beside chosen linear layers. Sources: litgpt, litgpt/model.py, lora.py, config.py.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    n_layer: int
    n_embd: int
    n_head: int
    intermediate: int
    vocabulary: int
    n_query_groups: int = 0  # 0: as many as heads
    head_size: int = 0  # 0: n_embd / n_head
    rotary: float = 1.0
    bias: bool = False
    is_parallel: bool = False  # attention and MLP from the same input
    shares_norm: bool = False
    norm: str = "rms"
    mlp: str = "llama"  # llama, gemma or gpt-neox
    head_bias: bool = False
    rank: int = 0
    trained: tuple[str, ...] = ()  # which linear layers have low rank factors

    @property
    def groups(self) -> int:
        return self.n_query_groups or self.n_head

    @property
    def head(self) -> int:
        return self.head_size or self.n_embd // self.n_head


_NEOX = {"norm": "layer", "mlp": "gpt-neox", "is_parallel": True}
CONFIGS = {
    "falcon-7b": Config(32, 4544, 71, 18176, 65024, n_query_groups=1, shares_norm=True, **_NEOX),
    "gemma-2b": Config(18, 2048, 8, 16384, 256000, n_query_groups=1, head_size=256, mlp="gemma"),
    "gemma-7b": Config(28, 3072, 16, 24576, 256000, head_size=256, mlp="gemma"),
    "llama-2-7b": Config(32, 4096, 32, 11008, 32000),
    "llama-2-13b": Config(40, 5120, 40, 13824, 32000),
    "llama-3-8b": Config(32, 4096, 32, 14336, 128256, n_query_groups=8),
    "llama-3.1-8b": Config(32, 4096, 32, 14336, 128256, n_query_groups=8),
    "llama-3.2-1b": Config(16, 2048, 32, 8192, 128256, n_query_groups=8),
    "llama-3.2-3b": Config(28, 3072, 24, 8192, 128256, n_query_groups=8),
    "mistral-7b": Config(32, 4096, 32, 14336, 32000, n_query_groups=8),
    "phi-1.5": Config(24, 2048, 32, 8192, 51200, rotary=0.5, bias=True, shares_norm=True, head_bias=True, **_NEOX),
    "phi-2": Config(32, 2560, 32, 10240, 51200, rotary=0.4, bias=True, shares_norm=True, head_bias=True, **_NEOX),
    "phi-3-mini": Config(32, 3072, 32, 8192, 32064),
    "stablelm-3b": Config(16, 4096, 32, 16384, 50688, rotary=0.25, bias=True, **_NEOX),
    "tiny-llama": Config(22, 2048, 32, 5632, 32000, n_query_groups=4),
}  # fmt: skip


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + 1e-5)
        return scaled.to(x.dtype) * self.weight


class LoRALinear(nn.Module):
    """A frozen linear layer and, if it is trained, two low rank factors beside it."""

    def __init__(self, config: Config, name: str, n_in: int, n_out: int, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(n_in, n_out, bias=bias)
        self.is_trained = config.rank > 0 and name in config.trained
        if self.is_trained:
            self.dropout = nn.Dropout(0.05)
            self.lora_A = nn.Parameter(torch.empty(config.rank, n_in))
            self.lora_B = nn.Parameter(torch.empty(n_out, config.rank))

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        if not self.is_trained:
            return out
        return out + (self.dropout(x) @ self.lora_A.transpose(0, 1) @ self.lora_B.transpose(0, 1)) * 0.5


class LoRAQKVLinear(nn.Module):
    """The fused projection; factors for some of query, key and value, scattered into place."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        per_group = config.n_head // config.groups
        n_out = (config.n_head + 2 * config.groups) * config.head
        self.linear = nn.Linear(config.n_embd, n_out, bias=config.bias)
        of = {"query": config.n_head, "key": config.groups, "value": config.groups}
        self.shapes = [n * config.head for name, n in of.items() if name in config.trained]
        self.is_trained = config.rank > 0 and bool(self.shapes)
        if not self.is_trained:
            return
        self.dropout = nn.Dropout(0.05)
        self.lora_A = nn.Parameter(torch.empty(config.rank * len(self.shapes), config.n_embd))
        self.lora_B = nn.Parameter(torch.empty(sum(self.shapes), config.rank))
        places = torch.arange(n_out) // config.head % (per_group + 2)
        wanted = {"query": places < per_group, "key": places == per_group, "value": places == per_group + 1}
        chosen = [torch.nonzero(wanted[name]).flatten() for name in of if name in config.trained]
        self.register_buffer("places", torch.cat(chosen), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        if not self.is_trained:
            return out
        low = F.linear(self.dropout(x), self.lora_A).transpose(-2, -1)
        weight = self.lora_B.unsqueeze(-1)
        if len(set(self.shapes)) == 1:
            wide = F.conv1d(low, weight, groups=len(self.shapes))
        else:
            parts = zip(low.chunk(len(self.shapes), dim=1), weight.split(self.shapes), strict=True)
            wide = torch.cat([F.conv1d(part, w) for part, w in parts], dim=1)
        wide = wide.transpose(-2, -1)
        if len(self.shapes) < 3:
            empty = wide.new_zeros(x.shape[0] * x.shape[1], out.shape[-1])
            wide = empty.index_copy(1, self.places, wide.reshape(-1, sum(self.shapes))).view_as(out)
        return out + wide * 0.5


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.attn = LoRAQKVLinear(config)
        self.proj = LoRALinear(config, "projection", config.head * config.n_head, config.n_embd, config.bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        config, (batch, length, _) = self.config, x.shape
        per_group = config.n_head // config.groups
        qkv = (
            self.attn(x).view(batch, length, config.groups, per_group + 2, config.head).permute(0, 2, 3, 1, 4)
        )
        q, k, v = qkv.split((per_group, 1, 1), dim=2)
        if per_group > 1:
            k, v = (t.expand(batch, config.groups, per_group, length, config.head) for t in (k, v))
        q, k, v = (t.reshape(batch, -1, length, config.head) for t in (q, k, v))
        n = cos.shape[-1]
        q = torch.cat((apply_rope(q[..., :n], cos, sin), q[..., n:]), dim=-1)
        k = torch.cat((apply_rope(k[..., :n], cos, sin), k[..., n:]), dim=-1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(attended.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.kind = config.mlp
        inputs = ("fc",) if config.mlp == "gpt-neox" else ("fc_1", "fc_2")
        for name in inputs:
            setattr(self, name, LoRALinear(config, "mlp", config.n_embd, config.intermediate, config.bias))
        self.proj = LoRALinear(config, "mlp", config.intermediate, config.n_embd, config.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "gpt-neox":
            return self.proj(F.gelu(self.fc(x)))
        act = F.silu if self.kind == "llama" else F.gelu
        gate, up = self.fc_1(x), self.fc_2(x)
        return self.proj(act(gate) * up)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        norm = RMSNorm if config.norm == "rms" else nn.LayerNorm
        self.is_parallel = config.is_parallel
        self.norm_1 = norm(config.n_embd)
        self.attn = Attention(config)
        self.norm_2 = None if config.shares_norm else norm(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normed = self.norm_1(x)
        attended = self.attn(normed, cos, sin)
        if self.is_parallel:
            normed = normed if self.norm_2 is None else self.norm_2(x)
            return self.mlp(normed) + attended + x
        x = attended + x
        return self.mlp(self.norm_2(x)) + x


class GPT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocabulary, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = RMSNorm(config.n_embd) if config.norm == "rms" else nn.LayerNorm(config.n_embd)
        self.lm_head = LoRALinear(config, "head", config.n_embd, config.vocabulary, config.head_bias)

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
        x = self.wte(tokens)
        if self.config.mlp == "gemma":
            x = x * self.config.n_embd**0.5
        for block in self.h:
            x = block(x, cos, sin)
        return [self.lm_head(part) for part in self.ln_f(x).split(128, dim=1)]


def rope_cache(config: Config, length: int) -> tuple[Tensor, Tensor]:
    n = int(config.rotary * config.head)
    theta = 1.0 / 10000.0 ** (torch.arange(0, n, 2, device="cuda").float() / n)
    angles = torch.outer(torch.arange(length, device="cuda").float(), theta).repeat(1, 2)
    return torch.cos(angles), torch.sin(angles)


def chunked_cross_entropy(logits: list[Tensor], targets: Tensor) -> Tensor:
    parts = zip(logits, targets.split(logits[0].shape[1], dim=1), strict=True)
    losses = [
        F.cross_entropy(part.reshape(-1, part.shape[-1]), target.reshape(-1), reduction="none")
        for part, target in parts
    ]
    return torch.cat(losses).sum() / (targets != -100).sum()


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=CONFIGS, required=True)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0, help="of the factors; 0 trains everything")
    parser.add_argument("--trained", nargs="*", default=[], help="query key value projection mlp head")
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args(words)


def main() -> None:
    args = parse()
    config = replace(CONFIGS[args.model], rank=args.rank, trained=tuple(args.trained))
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = GPT(config)
    torch.set_default_dtype(torch.float32)
    if args.rank:
        for name, param in model.named_parameters():
            param.requires_grad = "lora_" in name
    trained = [param for param in model.parameters() if param.requires_grad]
    print(f"n_params {sum(p.numel() for p in model.parameters())}", flush=True)
    print(f"n_trained {sum(p.numel() for p in trained)}", flush=True)
    optimizer = torch.optim.AdamW(trained, lr=2e-4)
    cos, sin = rope_cache(config, args.seq_len)
    for step in range(args.steps):
        for _ in range(args.accumulate):
            tokens = torch.randint(0, config.vocabulary, (args.micro_batch, args.seq_len)).cuda()
            # Lightning's bf16-true returns outputs in the default type
            logits = [part.float() for part in model(tokens, cos, sin)]
            logits[-1] = logits[-1][..., :-1, :]
            loss = chunked_cross_entropy(logits, tokens[..., 1:])
            (loss / args.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
