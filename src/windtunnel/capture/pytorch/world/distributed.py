"""Simulate `torch.distributed` for one rank of a job of any size: every backend name works, no network is used.

    init_process_group("nccl") ──> the world's SimulatedGroup        new_group, split_group, DeviceMesh ──> parts of it
    dist.TCPStore(...)         ──> SimulatedStore

Groups are torch's own objects in torch's own tables: everything built on them (DDP, FSDP, DTensor, pipelines,
functional collectives, Megatron's parallel state) runs unmodified.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from windtunnel.capture.pytorch.kernels.known_values import discard_values
from windtunnel.capture.pytorch.kernels.registration import composite_kernel
from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.world.checkpoint_plans import gathering_plans
from windtunnel.capture.pytorch.world.ddp_pinned import install_ddp_pinned
from windtunnel.capture.pytorch.world.fsdp1 import install_fsdp1
from windtunnel.capture.pytorch.world.nccl import install_nccl
from windtunnel.capture.pytorch.world.process_group import SimulatedGroup
from windtunnel.capture.pytorch.world.stores import SimulatedStore
from windtunnel.capture.rank_messages import LocalMessages, RankMessages

__all__ = ["install_distributed"]

_NAME = "simulated"
_DEVICE_LIBRARIES = {
    "nccl": "cuda",
    "hccl": "npu",
    "xccl": "xpu",
}  # each serves one kind of accelerator, and not the host
_functional = torch.library.Library("_c10d_functional", "IMPL")


def install_distributed(rank: int, world_size: int, messages: RankMessages | None, stops_early: bool) -> None:
    """Make torch.distributed simulate the peers of this rank."""
    if not dist.is_available():
        return
    SimulatedGroup.messages = SimulatedStore.messages = messages or LocalMessages()
    SimulatedGroup.stops_early = stops_early
    if world_size > 1 and messages is not None and not messages.is_alone:
        _order_files(rank, world_size, messages)
    SimulatedStore.rank, SimulatedStore.world_size = rank, world_size
    install_nccl()
    _register_backends()
    _replace_init(rank, world_size)
    _replace("_new_group_with_tag", _new_group)
    _replace("new_group", _untagged_group)
    _replace("split_group", _split_group)
    _replace("all_gather_object", _all_gather_object)
    _replace("gather_object", gathering_plans(dist.gather_object, c10d._get_default_group))
    _replace_broadcast()
    for name in ("is_nccl_available", "is_gloo_available", "is_mpi_available"):
        _replace(name, lambda: True)
    _replace("is_backend_available", lambda backend: True)
    if hasattr(c10d, "_maybe_attach_flight_recorder"):
        # It asks torch's C++ for the name of the group, which only a group with a C++ backend has.
        _replace("_maybe_attach_flight_recorder", lambda *args: None)
    for name in ("TCPStore", "FileStore"):
        _replace(name, SimulatedStore)
    _register_functional_collectives()
    install_fsdp1()
    install_ddp_pinned()


def _order_files(rank: int, world_size: int, messages: RankMessages) -> None:
    """From its first barrier on, this rank finds the files that others wrote before theirs."""
    began, files = time.time(), None

    def meet(group: str, ranks: Any) -> None:
        nonlocal files
        if files is None:
            from windtunnel.capture.pytorch.world.shared_files import (
                SharedFiles,
            )  # late: most programs need no order

            local_rank = int(os.environ.get("LOCAL_RANK", "0"))
            files = SharedFiles(rank, world_size, local_rank, messages, began)
            files.install()
        files.meet(group, ranks)

    SimulatedGroup.meet = meet


def _register_backends() -> None:
    def create(prefix_store: Any, group_rank: int, group_size: int, timeout: Any) -> SimulatedGroup:
        return _world_group(group_rank, group_size)

    device_type = store.world.device_type
    dist.Backend.register_backend(
        _NAME, create, devices=["cpu", device_type] if device_type != "cpu" else ["cpu"]
    )
    for name, device in _DEVICE_LIBRARIES.items():
        if name not in dist.Backend.backend_list:
            dist.Backend.register_backend(name, create, devices=[device])


_wanted_backend = ""  # of the group now being made by init_process_group


def _world_group(rank: int, world_size: int) -> SimulatedGroup:
    return SimulatedGroup(range(world_size), rank, *_library(_wanted_backend), "default_pg")


def _replace_init(own_rank: int, own_world_size: int) -> None:
    original = dist.init_process_group

    def init_process_group(backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1,
                           rank: int = -1, *args: Any, **kwargs: Any) -> None:  # fmt: skip
        global _wanted_backend
        _wanted_backend = str(backend or "").lower()
        n_ranks = own_world_size if world_size in (-1, None) else int(world_size)
        number = own_rank if rank in (-1, None) else int(rank)
        if own_world_size > 1 and rank in (-1, None) and "store" not in kwargs and _wanted_backend != "mpi":
            _check_variables(init_method)
        if not 0 <= number < n_ranks:
            raise ValueError(f"rank {number} is not one of the {n_ranks} ranks of the job: ranks start at 0")
        original(backend=_NAME, store=SimulatedStore(), rank=number, world_size=n_ranks)
        group: Any = c10d._get_default_group()
        name, _ = _library(_wanted_backend)
        c10d._world.pg_map[group] = (name, c10d._world.pg_map[group][1])
        c10d._world.pg_backend_config[group] = ",".join(f"{device}:{name}" for device in group._devices)

    _replace("init_process_group", init_process_group)


def _check_variables(init_method: Any) -> None:
    """Without them torch does not know its rank: mpirun and srun set others, which a script has to read itself."""
    missing = [name for name in ("RANK", "WORLD_SIZE") if name not in os.environ]
    if missing and init_method in (None, "env://"):
        raise ValueError(
            f"Error initializing torch.distributed using env:// rendezvous: environment variable {missing[0]} expected,"
            " but not set by mpirun or srun"
        )


def _library(backend: str) -> tuple[str, tuple[str, ...]]:
    """The name that a program sees for its backend, and the device types that the backend supports."""
    device_type = store.world.device_type
    if "cuda" in store.world.aliases:
        backend = backend.replace("nccl", "hccl")  # transfer_to_npu does it to every call
    if ":" in backend:
        pairs = [pair.split(":") for pair in backend.split(",")]
        return backend, tuple(dict.fromkeys(_device_name(pair[0].strip()) for pair in pairs))
    if not backend or backend == "undefined":
        default = {"cuda": "nccl", "npu": "hccl", "xpu": "xccl"}.get(device_type, "gloo")
        return default, (device_type,)
    if backend in _DEVICE_LIBRARIES:
        if device_type == "cpu":
            raise ValueError(
                f"the backend {backend} needs an accelerator, but the simulated device is the CPU: use gloo"
            )
        return backend, (device_type,)
    return backend, ("cpu",) if device_type == "cpu" else ("cpu", device_type)


def _device_name(device: str) -> str:
    """A script written for cuda that runs on another accelerator still says cuda."""
    return store.world.device_type if device in store.world.aliases else device


# -- parts of the world ------------------------------------------------------------------------------------


def _new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, backend_options: Any = None,
               pg_tag: Any = None, use_local_synchronization: bool = False, group_desc: Any = None,
               device_id: Any = None, sort_ranks: bool = True) -> Any:  # fmt: skip
    """Replaces torch's function. Every rank calls it for every group, so most calls are for groups of other ranks."""
    world: Any = c10d._get_default_group()
    own = world.ranks[world.rank()]
    if ranks is not None and own not in ranks:
        return None if use_local_synchronization else dist.GroupMember.NON_GROUP_MEMBER
    members = _members(ranks, world.size(), sort_ranks)
    if pg_tag not in (None, ""):
        known = c10d._find_pg_by_ranks_and_tag(pg_tag, members)
        if known is not None:
            return known
    default_name, default_store = c10d._world.pg_map[world]
    name, devices = _library(str(backend).lower()) if backend else (default_name, world._devices)
    group = SimulatedGroup(members, own, name, devices, group_desc or "undefined")
    group.options = backend_options
    group_name = c10d._process_group_name(members, use_hashed_name=use_local_synchronization)
    group._set_group_name(group_name)
    tables = c10d._world  # torch's own; it has a function that fills them only since 2.13
    tables.pg_map[group] = (name, dist.PrefixStore(f"{group_name}/", default_store))
    tables.pg_names[group] = group_name
    tables.pg_backend_config[group] = ",".join(f"{device}:{name}" for device in devices)
    tables.pg_group_ranks[group] = {member: i for i, member in enumerate(members)}
    tag = tables.pg_to_tag[group] = f"user:{pg_tag}" if pg_tag else f"ptd:{group_name}"
    for key in (tag,) if pg_tag else ("", tag):
        tables.tags_to_pg.setdefault(key, []).append(group)
    c10d._register_process_group(group_name, group)
    return group


def _untagged_group(ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None,
                    use_local_synchronization: bool = False, **rest: Any) -> Any:  # fmt: skip
    """Without torch's logging of each call: a large job creates tens of thousands of groups, mostly of other ranks."""
    return _new_group(ranks, timeout, backend, pg_options, None, use_local_synchronization, **rest)


def _members(ranks: Any, world_size: int, sort_ranks: bool) -> list[int]:
    if ranks is None:
        return list(range(world_size))
    members = sorted(ranks) if sort_ranks else list(ranks)
    twice = [rank for rank, n in Counter(members).items() if n > 1]
    if twice:
        raise ValueError(f"a process group of {len(members)} ranks was given rank {twice[0]} more than once")
    wrong = [rank for rank in members if not 0 <= rank < world_size]
    if wrong:
        raise ValueError(
            f"a process group was given rank {wrong[0]}, but the job has ranks 0 to {world_size - 1}"
        )
    return members


def _split_group(parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, pg_options: Any = None,
                 group_desc: Any = None, backend: Any = None) -> Any:  # fmt: skip
    parent: Any = parent_pg or c10d._get_default_group()
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    own = parent.rank()
    mine = next((ranks for ranks in split_ranks if own in ranks), None)
    if mine is None:
        return None
    if len(mine) == parent.size() and backend is None:
        return parent
    members = [parent.ranks[i] for i in sorted(mine)]
    return _new_group(members, backend=backend or parent.name(), group_desc=group_desc or "split")


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Like torch's, with the same buffers and calls, but without comparing and slicing once per rank of the job."""
    if c10d._rank_not_in_group(group):
        return
    members = group or c10d._get_default_group()
    device = c10d._get_object_coll_device(members)
    sent, size = c10d._object_to_tensor(obj, device, members)
    sizes = torch.zeros(members.size(), dtype=torch.long, device=device)
    members.all_gather_single(sizes, size)
    received = torch.empty(members.size() * sent.numel(), dtype=torch.uint8, device=device)
    discard_values(sent)  # one copy per rank of a large job is large, and the copies are never read
    members.all_gather_single(received, sent)
    pickled = pickle.dumps(obj)
    for i in range(members.size()):
        object_list[i] = pickle.loads(pickled)  # pickled by this process; a separate copy for every slot


def _replace_broadcast() -> None:
    original = dist.broadcast

    def broadcast(tensor: Any, src: int | None = None, group: Any = None, async_op: bool = False,
                  group_src: int | None = None) -> Any:  # fmt: skip
        """Torch asks torch.cuda whether NCCL can send FP8; on an NPU called cuda a script may have replaced the answer."""
        members: Any = group or c10d._get_default_group()
        root = group_src if src is None else members.ranks.index(src) if src in members.ranks else None
        is_plain = "cuda" in store.world.aliases and type(tensor) is torch.Tensor and not tensor.is_complex()
        if not is_plain or root is None or c10d._rank_not_in_group(group):
            return original(tensor, src, group, async_op, group_src)
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.asyncOp = root, 0, async_op
        work = members.broadcast([tensor], options)
        if work is not None and not async_op:
            work.wait()
        return work if async_op else None

    _replace("broadcast", broadcast)


# -- the rest of torch -------------------------------------------------------------------------------------


def _register_functional_collectives() -> None:
    """Torch's own C++ allocates their results; it must allocate them on the device of their inputs."""
    for full_name in torch._C._dispatch_get_all_op_names():
        if full_name.startswith("_c10d_functional::") and not full_name.endswith("_wrap_tensor_autograd"):
            _functional.impl(full_name.partition("::")[2], composite_kernel(full_name), "PrivateUse1")


def _replace(name: str, replacement: Any) -> None:
    """Replace a name in all modules of torch.distributed that already imported it."""
    original = getattr(c10d, name, None) or getattr(dist, name)
    for module in list(sys.modules.values()):
        if (
            getattr(module, "__name__", "").startswith("torch.distributed")
            and getattr(module, name, None) is original
        ):
            setattr(module, name, replacement)
