"""Shard a 7 B model with fully_shard, and print the CPU time that took: under windtunnel, or on fake tensors."""

import argparse
import contextlib
import os
import resource

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--fake-ranks", type=int, help="torch's own fake tensors and fake process group instead")
n_fake = parser.parse_args().fake_ranks
if n_fake:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=n_fake, store=FakeStore())
    mode, device = FakeTensorMode(), "cpu"
else:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mode, device = contextlib.nullcontext(), "cuda"


def cpu_seconds():
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


class Layer(nn.Module):
    """The parameters of one layer of Qwen2.5-7B."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(3584, 3584), nn.Linear(3584, 512), nn.Linear(3584, 512)
        self.out = nn.Linear(3584, 3584, bias=False)
        self.gate, self.up = nn.Linear(3584, 18944, bias=False), nn.Linear(3584, 18944, bias=False)
        self.down = nn.Linear(18944, 3584, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(3584) for _ in range(2))


torch.set_default_dtype(torch.bfloat16)
mesh = init_device_mesh(device, (dist.get_world_size(),))
with mode:
    with torch.device(device):
        layers = [Layer() for _ in range(28)]
        model = nn.Sequential(nn.Embedding(152064, 3584), *layers, nn.RMSNorm(3584), nn.Linear(3584, 152064))
    started = cpu_seconds()
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    print(f"fully_shard {cpu_seconds() - started:.2f} s")
