"""Two ranks tell each other all kinds of things, large and small; each checks what it gets."""

import numpy as np
import torch
import torch.distributed as dist

dist.init_process_group("cpu:gloo,cuda:nccl")
rank, other = dist.get_rank(), 1 - dist.get_rank()


def check(name, is_right):
    print(name, "right" if is_right else "wrong", flush=True)


# -- whole numbers on the card, and what is on the host, in any amount
sizes = torch.arange(3_000_000) * 7
there = sizes.cuda() if rank == 0 else torch.zeros(3_000_000, dtype=torch.int64, device="cuda")
dist.broadcast(there, 0)
check("integers", torch.equal(there.cpu(), sizes))

values = np.linspace(0, 1, 2_000_000)
host = torch.from_numpy(values.copy() if rank == 0 else np.zeros(2_000_000))
dist.broadcast(host, 0)
check("floats", bool((host.numpy() == values).all()))

objects = [b"x" * (20 << 20) if rank == 0 else None]
dist.broadcast_object_list(objects, 0, device=torch.device("cuda"))
check("object", objects[0] == b"x" * (20 << 20))

part = torch.zeros(200_000, dtype=torch.int64)
dist.scatter(part, [torch.arange(200_000) + i for i in range(2)] if rank == 0 else None, src=0)
check("part", torch.equal(part, torch.arange(200_000) + rank))

# -- both receive first and send after: nobody waits before both have sent
got, mine = torch.zeros(1000, dtype=torch.int64), torch.full((1000,), rank)
receiving, sending = dist.irecv(got, other), dist.isend(mine, other)
receiving.wait(), sending.wait()
check("exchange", got.unique().tolist() == [other])

got, mine = torch.zeros(1000, dtype=torch.int64, device="cuda"), torch.full((1000,), rank).cuda()
works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, other), dist.P2POp(dist.isend, mine, other)])
for work in works:
    work.wait()
check("batch", got.unique().tolist() == [other])

later = torch.tensor([rank + 5]).cuda()
work = dist.broadcast(later, 0, async_op=True)
work.wait()
check("later", later.item() == 5)

# -- groups with equal first and last ranks are different groups
groups = [dist.new_group([0, 1]) for _ in range(2)]
for i, group in enumerate(groups):
    number = torch.tensor([i if rank == 0 else -1])
    dist.broadcast(number, 0, group=group)
    check(f"group {i}", number.item() == i)
