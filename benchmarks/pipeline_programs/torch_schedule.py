"""Equal stages, one matrix product each, under any schedule of torch.distributed.pipelining."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

parser = argparse.ArgumentParser()
parser.add_argument("--schedule", default="1F1B")
parser.add_argument("--micro-batches", type=int, default=8)
parser.add_argument("--chunks", type=int, default=2, help="stages of each rank, if the schedule has several")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument(
    "--clip", action="store_true", help="all stages agree on the norm of the gradients after a step"
)
args = parser.parse_args()

dist.init_process_group("nccl")
rank, n_ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", rank % torch.cuda.device_count())
torch.cuda.set_device(device)

schedule_class = get_schedule_class(args.schedule)
is_multi = issubclass(schedule_class, PipelineScheduleMulti)
n_stages = args.chunks * n_ranks if is_multi else n_ranks


def build(stage):
    layer = nn.Linear(64, 64, bias=False)
    # Without the embedding, the first stage would have no gradient of its input to compute.
    return (nn.Sequential(nn.Embedding(100, 64), layer) if stage == 0 else layer).to(device)


is_v = "ZBV" in args.schedule or "DualPipeV" in args.schedule
indices = (rank, n_stages - 1 - rank) if is_v else range(rank, n_stages, n_ranks)
stages = [PipelineStage(build(i), i, n_stages, device) for i in indices]
schedule = schedule_class(
    stages if is_multi else stages[0],
    args.micro_batches,
    loss_fn=lambda output, target: output.square().mean(),
)
parameters = [p for stage in stages for p in stage.submod.parameters()]
optimizer = torch.optim.SGD(parameters, lr=1e-3)
ids = torch.zeros(args.micro_batches * 16, dtype=torch.long, device=device)
inputs = (ids,) if any(stage.is_first for stage in stages) else ()
target = ids if any(stage.is_last for stage in stages) else None
for _ in range(args.steps):
    schedule.step(*inputs, target=target)
    if args.clip:
        squares = torch.stack([p.grad.square().sum() for p in parameters]).sum()
        dist.all_reduce(squares)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
