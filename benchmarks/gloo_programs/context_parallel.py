"""Ring attention over a sequence split between ranks (context_parallel)."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
device = parser.parse_args().device
dist.init_process_group("gloo" if device == "cpu" else "nccl")
rank = dist.get_rank()
if device == "cuda":
    torch.cuda.set_device(rank % torch.cuda.device_count())
mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("cp",))
torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(128, 384), nn.Linear(128, 128)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, 4, 32).transpose(1, 2) for y in self.qkv(x).split(128, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, 128))


dtype = torch.bfloat16 if device == "cuda" else torch.float32
model = nn.Sequential(*(Attention() for _ in range(2))).to(device, dtype)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    x = torch.randn(2, 512, 128, device=device, dtype=dtype)
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1], no_restore_buffers={x}):
        loss = model(x).square().mean()
        loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {rank} loss {loss.item():.3f}")
dist.destroy_process_group()
