"""fully_shard over blocks whose sizes no world size divides, with optional bfloat16 and clipped gradients."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--keep-gathered", action="store_true", help="do not reshard after forward (ZeRO-2)")
args = parser.parse_args()
dist.init_process_group("gloo" if args.device == "cpu" else "nccl")
rank = dist.get_rank()
if args.device == "cuda":
    torch.cuda.set_device(rank % torch.cuda.device_count())
mesh = init_device_mesh(args.device, (dist.get_world_size(),))
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


blocks = [Block(251, 1003) for _ in range(4)]
model = nn.Sequential(nn.Linear(64, 251), *blocks, nn.Linear(251, 10)).to(args.device)
policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if args.bf16 else MixedPrecisionPolicy()
for block in blocks:
    fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=not args.keep_gathered)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(rank)
for _ in range(3):
    x, y = torch.randn(128, 64, device=args.device), torch.randint(0, 10, (128,), device=args.device)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {rank} loss {loss.item():.3f}")
dist.destroy_process_group()
