"""Train a Llama as torchtitan does: torchrun llama_fsdp2.py --model llama3-8b --seq-len 8192 --local-batch 1 ...

Float32 parameters sharded by fully_shard (a unit per block, bfloat16 gathered, float32 reduced), DTensor tensor
parallelism with sequence parallel norms, selective or full activation checkpointing, AdamW, clipped gradients.
What changed between torchtitan's versions is an option: where logits become float32, who holds them, the norm's form,
the optimizer's form, the loss in chunks, what is compiled. Sources: torchtitan, models/llama/model.py and
parallelisms/parallelize_llama.py.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections import defaultdict
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


@dataclass(frozen=True)
class Size:
    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    hidden: int
    vocabulary: int


SIZES = {
    "llama2-7b": Size(4096, 32, 32, 32, 11008, 32000),
    "llama2-13b": Size(5120, 40, 40, 40, 13824, 32000),
    "llama2-70b": Size(8192, 80, 64, 8, 28672, 32000),
    "llama3-8b": Size(4096, 32, 32, 8, 14336, 128256),
    "llama3-70b": Size(8192, 80, 64, 8, 28672, 128256),
    "llama3-405b": Size(16384, 126, 128, 8, 53248, 128256),
}


class PlainRMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return scaled.type_as(x) * self.weight


def build_norm(form: str, dim: int) -> nn.Module:
    return PlainRMSNorm(dim) if form == "plain" else nn.RMSNorm(dim, eps=1e-5)


def rotate(x: Tensor, freqs: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs.view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)


def repeat_heads(x: Tensor, times: int) -> Tensor:
    return x if times == 1 else x.unsqueeze(3).expand(-1, -1, -1, times, -1).flatten(2, 3)


class Attention(nn.Module):
    def __init__(self, size: Size, repeat_kv: bool) -> None:
        super().__init__()
        self.repeat_kv = repeat_kv
        self.head_dim = size.dim // size.n_heads
        self.repeats = size.n_heads // size.n_kv_heads
        self.wq = nn.Linear(size.dim, size.dim, bias=False)
        self.wk = nn.Linear(size.dim, size.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(size.dim, size.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(size.dim, size.dim, bias=False)

    def forward(self, x: Tensor, freqs: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, freqs), rotate(k, freqs)
        if self.repeat_kv:
            k, v = repeat_heads(k, self.repeats), repeat_heads(v, self.repeats)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        is_grouped = self.repeats > 1 and not self.repeat_kv
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=is_grouped)
        return self.wo(attended.transpose(1, 2).contiguous().flatten(2))


class FeedForward(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.w1 = nn.Linear(size.dim, size.hidden, bias=False)
        self.w2 = nn.Linear(size.hidden, size.dim, bias=False)
        self.w3 = nn.Linear(size.dim, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, size: Size, args: argparse.Namespace) -> None:
        super().__init__()
        self.attention = Attention(size, args.repeat_kv)
        self.feed_forward = FeedForward(size)
        self.attention_norm = build_norm(args.norm, size.dim)
        self.ffn_norm = build_norm(args.norm, size.dim)

    def forward(self, x: Tensor, freqs: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), freqs)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, size: Size, args: argparse.Namespace) -> None:
        super().__init__()
        self.logits_in_float = args.logits == "float-in-model"
        self.seq_len, self.head_dim = args.seq_len, size.dim // size.n_heads
        self.tok_embeddings = nn.Embedding(size.vocabulary, size.dim)
        self.register_buffer("freqs", self.rotations())
        self.layers = nn.ModuleList(Block(size, args) for _ in range(size.n_layers))
        self.norm = build_norm(args.norm, size.dim)
        self.output = nn.Linear(size.dim, size.vocabulary, bias=False)

    def rotations(self) -> Tensor:
        steps = torch.arange(0, self.head_dim, 2).float() / self.head_dim
        angles = torch.outer(torch.arange(self.seq_len), 1.0 / 500000.0**steps).float()
        return torch.polar(torch.ones_like(angles), angles)

    def init_weights(self) -> None:
        with torch.device("cuda"):
            self.freqs = self.rotations()
        for param in self.parameters():
            nn.init.normal_(param, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.freqs)
        logits = self.output(self.norm(x))
        return logits.float() if self.logits_in_float else logits


def apply_tensor_parallel(model: Llama, mesh: DeviceMesh) -> None:
    root = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, root)
    for layer in model.layers:
        plan = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
            ),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward.w3": ColwiseParallel(),
        }
        parallelize_module(layer, mesh, plan)


def selective_contexts(also_kept: list[str]):
    """Keep attention, reduce-scatters and every second matrix product; recompute the rest."""
    kept = {
        *(getattr(torch.ops.aten, name).default for name in also_kept),
        torch.ops.aten.mm.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
    }
    products: dict[bool, int] = defaultdict(int)

    def policy(ctx, func, *args, **kwargs):
        if func == torch.ops.aten.mm.default:
            products[ctx.is_recompute] += 1
            if products[ctx.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if func in kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def convert_to_float8(model: Llama, recipe: str) -> None:
    """Linear layers but the last multiply in float8, as torchao does it."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    if recipe == "rowwise":
        config = Float8LinearConfig.from_recipe_name(recipe)
    else:
        config = Float8LinearConfig(enable_fsdp_float8_all_gather=recipe == "tensorwise-gathered")
    convert_to_float8_training(model, config=config, module_filter_fn=lambda module, name: name != "output")


def apply_checkpointing(model: Llama, mode: str, also_kept: list[str]) -> None:
    for i, layer in enumerate(model.layers):
        if mode == "full" or (mode == "selective-layer" and i % 2 == 1):
            model.layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False)
        elif mode == "selective-op":
            model.layers[i] = checkpoint_wrapper(
                layer, preserve_rng_state=False, context_fn=partial(selective_contexts, also_kept)
            )


def apply_sharding(model: Llama, mesh: DeviceMesh, args: argparse.Namespace) -> None:
    """What is used last in forward is used first in backward: it need not be resharded in between."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mesh": mesh, "mp_policy": policy}
    always, last = args.reshard == "always", len(model.layers) - 1
    if args.units == "blocks":
        for i, layer in enumerate(model.layers):
            fully_shard(layer, **options, reshard_after_forward=always or i < last)
    else:
        fully_shard(model.tok_embeddings, **options, reshard_after_forward=True)
        for layer in model.layers:
            fully_shard(layer, **options, reshard_after_forward=True)
        fully_shard([model.norm, model.output], **options, reshard_after_forward=always)
    fully_shard(model, **options)


def build(args: argparse.Namespace, mesh: DeviceMesh) -> nn.Module:
    with torch.device("meta"):
        model = Llama(SIZES[args.model], args)
    if dist.get_rank() == 0:
        print(f"n_params {sum(p.numel() for p in model.parameters())}", flush=True)
    if args.fsdp1:
        return build_fsdp1(model, args)
    if args.float8:
        convert_to_float8(model, args.float8)
    if args.tp > 1:
        apply_tensor_parallel(model, mesh["tp"])
    apply_checkpointing(model, args.ac, args.also_kept)
    if args.compile == "blocks":
        for i, layer in enumerate(model.layers):
            model.layers[i] = torch.compile(layer, fullgraph=True)
    apply_sharding(model, mesh["dp"], args)
    model.to_empty(device="cuda")
    with torch.no_grad():
        model.init_weights()
    return torch.compile(model) if args.compile == "model" else model


def build_fsdp1(model: Llama, args: argparse.Namespace) -> nn.Module:
    """The first FSDP, which torchtitan began with."""
    model = model.to_empty(device="cuda")
    with torch.no_grad():
        model.init_weights()
    apply_checkpointing(model, args.ac, args.also_kept)
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({type(model.layers[0])}),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        limit_all_gathers=True,
        use_orig_params=True,
        device_id=torch.device("cuda", torch.cuda.current_device()),
    )


def loss_of(logits: Tensor, labels: Tensor, chunks: int) -> Tensor:
    if chunks == 1:
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
    parts = zip(logits.chunk(chunks, dim=1), labels.chunk(chunks, dim=1), strict=True)
    total = sum(
        F.cross_entropy(part.flatten(0, 1).float(), label.flatten(0, 1), reduction="sum")
        for part, label in parts
    )
    return total / labels.numel()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, args: argparse.Namespace) -> Tensor:
    vocabulary = SIZES[args.model].vocabulary
    tokens = torch.randint(0, vocabulary, (args.local_batch, args.seq_len + 1))
    inputs, labels = tokens[:, :-1].contiguous().cuda(), tokens[:, 1:].contiguous().cuda()
    optimizer.zero_grad()
    with loss_parallel() if args.tp > 1 else contextlib.nullcontext():
        logits = model(inputs)
        loss = (torch.compile(loss_of) if args.compile_loss else loss_of)(logits, labels, args.loss_chunks)
        if not args.hold_logits:
            del logits
        loss.backward()
    if args.fsdp1:
        model.clip_grad_norm_(1.0)
    else:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        if isinstance(norm, DTensor):
            norm.full_tensor()
    optimizer.step()
    if args.float8 == "tensorwise-gathered":
        from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

        precompute_float8_dynamic_scale_for_fsdp(model)
    return loss


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SIZES, required=True)
    parser.add_argument("--seq-len", type=int, default=8192)
    parser.add_argument("--local-batch", type=int, default=1)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--ac", choices=("none", "full", "selective-op", "selective-layer"), default="none")
    parser.add_argument("--compile", choices=("blocks", "model"), help="each block, or all after sharding")
    parser.add_argument("--compile-loss", action="store_true")
    parser.add_argument("--float8", choices=("tensorwise", "tensorwise-gathered", "rowwise"))
    parser.add_argument(
        "--also-kept", nargs="*", default=[], help="operators that selective checkpointing keeps"
    )
    parser.add_argument("--attention", choices=("flash", "cudnn"), default="flash")
    parser.add_argument("--norm", choices=("plain", "torch"), default="torch")
    parser.add_argument("--logits", choices=("float-in-model", "float-in-loss"), default="float-in-loss")
    parser.add_argument("--hold-logits", action="store_true", help="keep the name of the logits in backward")
    parser.add_argument("--loss-chunks", type=int, default=1)
    parser.add_argument("--optimizer", choices=("foreach", "fused"), default="foreach")
    parser.add_argument("--reshard", choices=("default", "always"), default="default")
    parser.add_argument(
        "--units", choices=("blocks", "all"), default="all", help="what is sharded on its own"
    )
    parser.add_argument(
        "--repeat-kv", action="store_true", help="copy key and value heads to the number of queries"
    )
    parser.add_argument("--fsdp1", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args(words)


def main() -> None:
    args = parse()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # Flash attention is what it asked for, on Hopper too; later cuDNN's on Blackwell.
    torch.backends.cuda.enable_cudnn_sdp(args.attention == "cudnn")
    world = dist.get_world_size()
    mesh = init_device_mesh("cuda", (world // args.tp, args.tp), mesh_dim_names=("dp", "tp"))
    model = build(args, mesh)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, **{args.optimizer: True}
    )
    for step in range(args.steps):
        loss = train_step(model, optimizer, args)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
