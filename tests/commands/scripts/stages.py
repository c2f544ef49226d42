"""Two pipeline stages of data-parallel ranks; the last stage is wider, and the stage before it sends the width."""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--fails", type=int, help="this rank raises")
parser.add_argument("--skips", type=int, help="this rank leaves out a collective")
parser.add_argument("--kills-parent", type=int, help="this rank kills the process that started it, once")
parser.add_argument("--kills-grandparent", type=int, help="this rank kills the parent of that process, once")
parser.add_argument("--mark", help="a file that says it was done")
args = parser.parse_args()

dist.init_process_group("nccl")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
half = world_size // 2
stages = [list(range(half)), list(range(half, world_size))]
replicas = [dist.new_group(stage) for stage in stages]
pipes = [dist.new_group([i, i + half]) for i in range(half)]
stage = rank // half
told = [None]
if stage == 0:
    dist.send_object_list([4096], dst=rank + half)
else:
    dist.recv_object_list(told, src=rank - half)
width = told[0] or 1024
print(f"rank {rank} is {width} wide", flush=True)
if rank == args.fails:
    raise ValueError(f"rank {rank} has no data")
if args.mark and not os.path.exists(args.mark):
    victim = None
    if rank == args.kills_parent:
        victim = os.getppid()
    elif rank == args.kills_grandparent:
        victim = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
    if victim is not None:
        Path(args.mark).touch()
        os.kill(victim, signal.SIGKILL)
        signal.pause()
weight = torch.zeros(1024, width, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    weight.sum().backward()
    if rank != args.skips:
        dist.all_reduce(weight.grad, group=replicas[stage])
    optimizer.step()
    optimizer.zero_grad()
