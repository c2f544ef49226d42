"""Train an MPT as llm-foundry's throughput runs do: torchrun mpt_fsdp.py --model 7b --seq-len 2048 --micro-batch 8 ...

The model of llm-foundry (learned positions, biases, tied head, low precision layer norms) inside torch's first FSDP,
as Composer wraps it: a unit per block, bfloat16 shards gathered and reduced, float32 optimizer state. A global batch
is cut into micro-batches, the last of which may be smaller. After each one, Composer's two training metrics compute
the cross entropy again. Sizes: llm-foundry, scripts/train/yamls/pretrain; wrapping: composer/trainer/dist_strategy.py.
"""

from __future__ import annotations

import argparse
import math
import os
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

VOCABULARY = 50368
SIZES = {  # d_model, heads, layers
    "125m": (768, 12, 12),
    "350m": (1024, 16, 24),
    "760m": (1536, 12, 24),
    "1b": (2048, 16, 24),
    "3b": (2560, 20, 32),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 56, 48),
    "70b": (8192, 64, 80),
}


class LowPrecisionLayerNorm(nn.LayerNorm):
    """A layer norm that stays in autocast's dtype, where torch's own would use float32."""

    def forward(self, x: Tensor) -> Tensor:
        low = torch.get_autocast_dtype(x.device.type)
        with torch.autocast(x.device.type, enabled=False):
            return F.layer_norm(
                x.to(low), self.normalized_shape, self.weight.to(low), self.bias.to(low), self.eps
            )


class Attention(nn.Module):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.Wqkv = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.Wqkv(x).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(attended.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.norm_1 = LowPrecisionLayerNorm(d_model)
        self.attn = Attention(d_model, n_heads)
        self.norm_2 = LowPrecisionLayerNorm(d_model)
        self.up_proj = nn.Linear(d_model, 4 * d_model)
        self.down_proj = nn.Linear(4 * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm_1(x))
        return x + self.down_proj(F.gelu(self.up_proj(self.norm_2(x))))


class Mpt(nn.Module):
    def __init__(self, size: str, max_seq_len: int) -> None:
        super().__init__()
        d_model, n_heads, n_layers = SIZES[size]
        self.wte = nn.Embedding(VOCABULARY, d_model)
        self.wpe = nn.Embedding(max_seq_len, d_model)
        self.blocks = nn.ModuleList(Block(d_model, n_heads) for _ in range(n_layers))
        self.norm_f = LowPrecisionLayerNorm(d_model)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm_f(x), self.wte.weight)


class DecoupledAdamW(torch.optim.Optimizer):
    """Composer's AdamW: a parameter at a time, no fused and no foreach form."""

    def __init__(self, params, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.95), "eps": 1e-8})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(param), exp_avg_sq=torch.zeros_like(param))
                state["step"] += 1
                state["exp_avg"].mul_(beta1).add_(param.grad, alpha=1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(param.grad, param.grad, value=1 - beta2)
                correction = math.sqrt(1 - beta2 ** state["step"])
                denominator = (state["exp_avg_sq"].sqrt() / correction).add_(group["eps"])
                param.addcdiv_(state["exp_avg"], denominator, value=-lr / (1 - beta1 ** state["step"]))


class CrossEntropy(torch.autograd.Function):
    """What flash_attn's fused loss keeps and makes: bfloat16 logits, their gradient, and nothing else of that size."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(logits, targets)
        return F.nll_loss(F.log_softmax(logits, dim=-1), targets)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        logits, targets = ctx.saved_tensors
        slopes = F.softmax(logits, dim=-1)
        is_counted = targets != -100
        places = targets.clamp(min=0).unsqueeze(1)
        slopes.scatter_add_(1, places, -torch.ones_like(places, dtype=slopes.dtype))
        return slopes.mul_((grad * is_counted / is_counted.sum()).unsqueeze(1).to(slopes.dtype)), None


def fused_cross_entropy():
    """flash_attn's own, or the same in torch where that package is not installed."""
    try:
        from flash_attn.losses.cross_entropy import CrossEntropyLoss
    except ImportError:
        return CrossEntropy.apply
    return CrossEntropyLoss()


def build(args: argparse.Namespace) -> FullyShardedDataParallel:
    with torch.device("meta"):
        model = Mpt(args.model, args.seq_len)
    if dist.get_rank() == 0:
        print(f"n_params {sum(p.numel() for p in model.parameters())}", flush=True)
    low = torch.bfloat16
    model = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=ShardingStrategy[args.sharding],
        mixed_precision=MixedPrecision(param_dtype=low, reduce_dtype=low, buffer_dtype=low),
        backward_prefetch=BackwardPrefetch.BACKWARD_POST,
        limit_all_gathers=True,
        use_orig_params=True,
        device_id=torch.device("cuda", torch.cuda.current_device()),
        param_init_fn=lambda module: module.to_empty(device="cuda", recurse=False),
    )
    if args.activation_checkpointing:
        apply_activation_checkpointing(
            model,
            checkpoint_wrapper_fn=partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
            check_fn=lambda module: isinstance(module, Block),
        )
    return model


def micro_batches(per_device: int, micro_batch: int) -> list[int]:
    """Sequences in each: a batch of 11 in fours is 4, 4, 3."""
    return [min(micro_batch, per_device - start) for start in range(0, per_device, micro_batch)]


def train_step(model, optimizer, loss_fn, args: argparse.Namespace) -> Tensor:
    per_device = args.global_batch // dist.get_world_size()
    total = torch.zeros(1, device="cuda")
    optimizer.zero_grad(set_to_none=True)
    for n_sequences in micro_batches(per_device, args.micro_batch):
        tokens = torch.randint(0, VOCABULARY, (n_sequences, args.seq_len)).cuda()
        targets = torch.roll(tokens, -1, dims=1)
        targets[:, -1] = -100
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens)
        flat = logits.view(-1, VOCABULARY)
        loss = loss_fn(flat, targets.view(-1)) * (n_sequences / per_device)
        loss.backward()
        total += loss.detach()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            for _ in ("LanguageCrossEntropy", "LanguagePerplexity"):
                F.cross_entropy(flat, targets.view(-1), reduction="sum")
    model.clip_grad_norm_(1.0)
    optimizer.step()
    return total


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SIZES, required=True)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument("--sharding", choices=("FULL_SHARD", "SHARD_GRAD_OP"), default="FULL_SHARD")
    parser.add_argument("--activation-checkpointing", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args(words)


def main() -> None:
    args = parse()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.enable_cudnn_sdp(False)  # the runs used flash attention
    model, loss_fn = build(args), fused_cross_entropy()
    optimizer = DecoupledAdamW(model.parameters(), lr=1e-4)
    for step in range(args.steps):
        loss = train_step(model, optimizer, loss_fn, args)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
