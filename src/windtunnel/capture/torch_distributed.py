"""One rank of a process group of any size, with any backend name: every collective returns at once.

    init_process_group("nccl") ──> SimulatedGroup of this rank and world size
    dist.all_reduce(x)         ──> x, and a finished work handle

Peers are taken to hold what this rank holds: a gather returns copies of this rank's tensor.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

from windtunnel.capture import torch_storage as store
from windtunnel.capture.recorder import Recorder
from windtunnel.events.model import Phase, Role

__all__ = ["SimulatedGroup", "install_distributed"]

_NAME = "simulated"


class _Work(dist._Work):
    """A collective that is already done."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.future_ = torch.futures.Future()
        self.future_.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future:
        return self.future_


class SimulatedGroup(dist.ProcessGroup):
    """A process group whose peers are simulated by symmetry."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._name = self._description = "undefined"

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def getBackendName(self) -> str:
        return _NAME

    # torch keeps these in a group's backends, which this group has none of
    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    def __repr__(self) -> str:
        return f"SimulatedGroup(rank={self._rank}, size={self._size})"

    def allreduce(self, tensors: Any, opts: Any = None) -> _Work:
        _mark_buckets(tensors)
        return _Work(tensors)

    allreduce_coalesced = broadcast = reduce = allreduce

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> _Work:
        for received, sent in zip(outputs, inputs, strict=True):
            for each in received:
                each.copy_(sent)
        return _Work(outputs)

    allgather_coalesced = allgather

    def _allgather_base(self, output: Any, source: Any, opts: Any = None) -> _Work:
        return _Work([output])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> _Work:
        return _Work(outputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> _Work:
        return _Work(outputs)

    def _reduce_scatter_base(self, output: Any, source: Any, opts: Any = None) -> _Work:
        return _Work([output])

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> _Work:
        return _Work(outputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> _Work:
        return _Work(outputs)

    def alltoall_base(
        self, output: Any, source: Any, output_split: Any = None, input_split: Any = None, opts: Any = None
    ) -> _Work:
        return _Work([output])

    all_to_all_single = alltoall_base

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> _Work:
        return _Work(outputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> _Work:
        return _Work(outputs)

    def send(self, tensors: Any, peer: int, tag: int = 0) -> _Work:
        return _Work(tensors)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> _Work:
        return _Work(tensors)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> _Work:
        return _Work(tensors)

    def barrier(self, opts: Any = None) -> _Work:
        return _Work(None)


def _mark_buckets(tensors: list[torch.Tensor]) -> None:
    """What is reduced during backward and is not a gradient itself is a buffer of the communication."""
    recorder = store.world.recorder
    if recorder.phase != Phase.BACKWARD:
        return
    for tensor in tensors:
        sim = store.sim_of(tensor)
        if sim is not None and sim.role == 0 and sim.device_index >= 0:
            sim.role = int(Role.COMMUNICATION)
            recorder.mark(sim.id, Role.COMMUNICATION)


def install_distributed(recorder: Recorder, rank: int, world_size: int) -> None:
    """Make init_process_group simulate the peers of this rank."""
    if not dist.is_available():
        return

    def create(prefix_store: Any, group_rank: int, group_size: int, timeout: Any) -> SimulatedGroup:
        return SimulatedGroup(group_rank, group_size)

    dist.Backend.register_backend(_NAME, create, devices=["cpu", "cuda", store.SIM.type])
    original, new_group = dist.init_process_group, dist.new_group

    def init_process_group(backend: Any = None, init_method: Any = None, *args: Any, **kwargs: Any) -> None:
        wanted = {k: kwargs[k] for k in ("rank", "world_size") if kwargs.get(k, -1) not in (-1, None)}
        original(
            backend=_NAME,
            store=dist.HashStore(),
            rank=wanted.get("rank", rank),
            world_size=wanted.get("world_size", world_size),
        )

    def simulated_new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        return new_group(ranks, backend=_NAME, **{k: v for k, v in kwargs.items() if k == "group_desc"})

    _replace_everywhere("init_process_group", original, init_process_group)
    _replace_everywhere("new_group", new_group, simulated_new_group)


def _replace_everywhere(name: str, original: Any, replacement: Any) -> None:
    """Torch's own modules took these functions by name before we came."""
    for module in list(sys.modules.values()):
        if (
            getattr(module, "__name__", "").startswith("torch.distributed")
            and getattr(module, name, None) is original
        ):
            setattr(module, name, replacement)
