"""FullyShardedDataParallel, the older of torch's two, wrapping every encoder layer."""

import argparse
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--strategy", default="FULL_SHARD")
args = parser.parse_args()
dist.init_process_group("gloo" if args.device == "cpu" else "nccl")
rank = dist.get_rank()
if args.device == "cuda":
    torch.cuda.set_device(rank % torch.cuda.device_count())
torch.manual_seed(0)

layers = [nn.TransformerEncoderLayer(129, 3, 515, batch_first=True) for _ in range(3)]
model = nn.Sequential(nn.Linear(64, 129), *layers, nn.Linear(129, 10))
model = FullyShardedDataParallel(
    model,
    auto_wrap_policy=functools.partial(
        transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer}
    ),
    sharding_strategy=ShardingStrategy[args.strategy],
    device_id=torch.device(args.device, rank % torch.cuda.device_count())
    if args.device == "cuda"
    else torch.device("cpu"),
    use_orig_params=True,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    x, y = torch.randn(8, 32, 64, device=args.device), torch.randint(0, 10, (8,), device=args.device)
    loss = nn.functional.cross_entropy(model(x).mean(1), y)
    loss.backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {rank} loss {loss.item():.3f}")
dist.destroy_process_group()
