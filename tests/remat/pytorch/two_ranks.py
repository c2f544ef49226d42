"""One rank of two real processes: train plainly and under thresholds of its own, print whether the bits agree.

python -m tests.remat.pytorch.two_ranks ddp|fsdp2 RANK STORE ──> one JSON line
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.remat.models import Gpt
from tests.remat.pytorch.training import CPU, METER, bits, live_bytes, runtime

STEPS = 4
KINDS = ("ddp", "fsdp", "fsdp2", "tensor_parallel")


class Reduce(torch.autograd.Function):
    """The sum over ranks, in place; its gradient is the gradient (as Megatron has it)."""

    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class RowParallel(nn.Module):
    """Layers of which each rank has half the columns: what they give is summed over ranks."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 256, bias=False) for _ in range(6))

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = Reduce.apply(layer(x))
            x = torch.tanh(x * x)[..., :64]
        return x.repeat(1, 1, 4)


def main(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        for kind in KINDS:
            plain, peak = _train(kind, rank)
            share = (0.5, 0.3)[rank]  # each rank has its own threshold
            with runtime(live_bytes() + int(share * peak)) as live:
                found, _ = _train(kind, rank)
            statistics = live.engine.statistics
            result = {
                "kind": kind,
                "is_same": found == plain,
                "evictions": statistics.evictions,
                "rematerialisations": statistics.rematerialisations,
            }
            sys.stdout.write(json.dumps(result) + "\n")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _train(kind: str, rank: int) -> tuple[list[str], int]:
    """Losses, gradients and weights; and about how much memory a forward needs."""
    torch.manual_seed(0)
    before = live_bytes()
    model = Gpt(depth=4)
    if kind == "tensor_parallel":
        model = RowParallel()
    elif kind == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=0.2)
    elif kind == "fsdp":
        for i, block in enumerate(model.blocks):
            model.blocks[i] = FullyShardedDataParallel(block, use_orig_params=True, device_id=CPU)
    else:
        mesh = init_device_mesh("cpu", (2,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found, peak = [], 0
    for step in range(STEPS):
        torch.manual_seed(100 * step + rank)
        ids = torch.randint(256, (4, 65), generator=torch.Generator().manual_seed(10 * step + rank))
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        peak = max(peak, METER.live_bytes() - before)
        loss.backward()
        found += bits([loss, *(_local(p.grad) for p in model.parameters() if p.grad is not None)])
        optimizer.step()
        optimizer.zero_grad()
    return found + bits(_local(p) for p in model.parameters()), peak


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
