"""A pipeline of stages that infer each other's shapes at run time, under any schedule of torch.distributed."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument(
    "--schedule", default="1F1B", help="GPipe, 1F1B, Interleaved1F1B, InterleavedZeroBubble, ..."
)
parser.add_argument("--micro-batches", type=int, default=4)
args = parser.parse_args()
dist.init_process_group("gloo" if args.device == "cpu" else "nccl")
rank, world_size = dist.get_rank(), dist.get_world_size()
device = (
    torch.device(args.device, rank % torch.cuda.device_count())
    if args.device == "cuda"
    else torch.device("cpu")
)
if args.device == "cuda":
    torch.cuda.set_device(rank % torch.cuda.device_count())
torch.manual_seed(0)

schedule_class = get_schedule_class(args.schedule)
is_multi = issubclass(schedule_class, PipelineScheduleMulti)
n_stages = 2 * world_size if is_multi else world_size


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(192), nn.Linear(192, 768), nn.Linear(768, 192)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def build(stage):
    parts = [Block() for _ in range(2)]
    if stage == 0:
        parts = [nn.Embedding(2000, 192), *parts]
    if stage == n_stages - 1:
        parts = [*parts, nn.LayerNorm(192), nn.Linear(192, 2000)]
    return nn.Sequential(*parts).to(device)


def loss_of(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


indices = range(rank, n_stages, world_size)
if "ZBV" in args.schedule or "DualPipeV" in args.schedule:
    indices = (rank, n_stages - 1 - rank)
stages = [PipelineStage(build(i), i, n_stages, device) for i in indices]
schedule = schedule_class(
    stages if is_multi else stages[0], n_microbatches=args.micro_batches, loss_fn=loss_of
)
parameters = [p for stage in stages for p in stage.submod.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
is_first, is_last = (any(s.is_first for s in stages), any(s.is_last for s in stages))
for _ in range(3):
    ids = torch.randint(0, 2000, (8, 65), device=device)
    losses = []
    inputs = (ids[:, :-1],) if is_first else ()
    target = ids[:, 1:] if is_last else None
    schedule.step(*inputs, target=target, losses=losses if is_last else None)
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {rank} losses {[round(loss.item(), 3) for loss in losses]}")
dist.destroy_process_group()
