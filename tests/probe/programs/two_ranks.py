"""One of two processes that communication over gloo, under the probe: every collective, DDP and FSDP2.

python two_ranks.py RANK FOLDER ──> FOLDER/{calls,ddp,fsdp,kernels}/step0/rank{RANK}, FOLDER/result{RANK}.json
"""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import all_reduce  # bound before there is a debugger
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from windtunnel.probe.pytorch.eager.autograd_functions import method_swap
from windtunnel.pytorch import PrecisionDebugger

WATCHED = (dist.all_reduce, dist.isend, dist.all_gather_into_tensor)


def main(rank: int, folder: Path) -> dict:
    warnings.simplefilter("ignore", FutureWarning)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    result: dict = {"clean": _traces()}
    result["late"] = calls(rank, folder / "calls")
    for name, wrap, level in (("ddp", ddp, "mix"), ("fsdp", fsdp, "mix"), ("kernels", ddp, "L2")):
        plain, probed = train(rank, wrap), train(rank, wrap, debugger(folder / name, level))
        result[name] = [plain == probed, len(plain)]
    PrecisionDebugger.current.close()
    result["clean"] = result["clean"] == _traces()
    dist.destroy_process_group()
    return result


def _traces() -> list:
    """What collecting may not change for good."""
    code = [id(inspect.unwrap(function).__code__) for function in WATCHED]
    apply = torch.autograd.Function.apply
    if hasattr(apply, "__func__"):
        code.append(id(apply.__func__.__code__))
    elif method_swap is not None:
        code.append(method_swap.is_swapped())
    return [*code, str(inspect.signature(dist.all_reduce)), id(vars(dist.Work)["wait"])]


def debugger(folder: Path, level: str) -> PrecisionDebugger:
    return PrecisionDebugger(dump_path=str(folder), task="statistics", level=level)


def calls(rank: int, folder: Path) -> list:
    """Each function of torch.distributed once or twice; returns what was there before the last wait."""
    probe = debugger(folder, "L1")
    other = 1 - rank
    group = dist.new_group([0, 1])
    mine = torch.full((2,), float(rank))
    before = [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, torch.zeros(2), other)]
    probe.start()
    all_reduce(mine.clone(), op=dist.ReduceOp.MAX)
    dist.all_reduce(tensor=mine.clone(), group=group)
    dist.all_reduce(mine.clone(), async_op=True).wait()
    dist.broadcast(mine.clone(), src=1)
    parts = [torch.zeros(2), torch.zeros(2)]
    dist.all_gather(parts, mine)
    dist.all_gather(tensor_list=parts, tensor=mine, async_op=True).wait()
    dist.all_gather_into_tensor(torch.zeros(4), mine)
    dist.reduce(mine.clone(), dst=0)
    dist.reduce_scatter(torch.zeros(2), [mine, mine])
    dist.reduce_scatter_tensor(torch.zeros(1), mine)
    dist.gather(mine, gather_list=parts if rank == 0 else None, dst=0)
    dist.scatter(torch.zeros(2), [mine, mine] if rank == 0 else None, src=0)
    dist.all_to_all_single(torch.zeros(2), mine)
    dist.all_to_all([torch.zeros(1), torch.zeros(1)], [mine[:1], mine[1:]])
    if rank == 0:
        dist.send(mine, 1)
        dist.isend(mine, 1).wait()
    else:
        dist.recv(torch.zeros(2), src=0)
        dist.irecv(torch.zeros(2), 0).wait()
    for work in dist.batch_isend_irecv(before):
        work.wait()
    dist.barrier()
    if rank == 0:  # rank 1 sends after step: nothing has arrived by then
        late = dist.irecv(torch.zeros(2), 1)
        probe.stop()
        is_watched = vars(dist.Work)["wait"].__module__ == "windtunnel.probe.pytorch.eager.collectives"
    else:
        late, is_watched = None, True
        probe.stop()
    probe.step()
    dist.barrier()
    if rank == 0:
        late.wait()
    else:
        dist.send(mine, 0)
    return [is_watched, vars(dist.Work)["wait"].__class__.__name__]


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def fsdp(model: nn.Module) -> nn.Module:
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(rank: int, wrap, probe: PrecisionDebugger | None = None) -> list:
    """Losses and gradients of two steps, to the bit."""
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(2):
        x = torch.sin(torch.arange(12.0).reshape(3, 4) * (rank + 1) + step)
        if probe is not None:
            probe.start(model)
        loss = model(x).square().mean()
        loss.backward()
        if probe is not None:
            probe.stop()
            probe.step()
        for parameter in model.parameters():
            gradient = parameter.grad
            found.append(gradient.to_local().tolist() if hasattr(gradient, "to_local") else gradient.tolist())
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    answer = main(rank, folder)
    (folder / f"result{rank}.json").write_text(json.dumps(answer))
