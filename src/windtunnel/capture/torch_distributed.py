"""A job of any size seen by one rank: `torch.distributed` with every backend name, and no network.

    init_process_group("nccl") ──> the world's SimulatedGroup        new_group, split_group, DeviceMesh ──> parts of it
    dist.TCPStore(...)         ──> SimulatedStore

Groups are torch's own objects in torch's own tables: everything built on them (DDP, FSDP, DTensor, pipelines,
functional collectives, Megatron's parallel state) runs unmodified.
"""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from windtunnel.capture import torch_storage as store
from windtunnel.capture.mail import LocalMail, Mail
from windtunnel.capture.torch_fsdp1 import install_fsdp1
from windtunnel.capture.torch_process_group import SimulatedGroup
from windtunnel.capture.torch_registration import aimed
from windtunnel.capture.torch_stores import SimulatedStore
from windtunnel.capture.torch_values import forget

__all__ = ["install_distributed"]

_NAME = "simulated"
_CARD_LIBRARIES = {
    "nccl": "cuda",
    "hccl": "npu",
    "xccl": "xpu",
}  # which serve one kind of card, and not the host
_functional = torch.library.Library("_c10d_functional", "IMPL")


def install_distributed(rank: int, world_size: int, mail: Mail | None, stops_early: bool) -> None:
    """Make torch.distributed simulate the peers of this rank."""
    if not dist.is_available():
        return
    SimulatedGroup.mail = SimulatedStore.mail = mail or LocalMail()
    SimulatedGroup.stops_early = stops_early
    SimulatedStore.rank, SimulatedStore.world_size = rank, world_size
    _register_backends()
    _replace_init(rank, world_size)
    _replace("_new_group_with_tag", _new_group)
    _replace("new_group", _untagged_group)
    _replace("split_group", _split_group)
    _replace("all_gather_object", _all_gather_object)
    for name in ("is_nccl_available", "is_gloo_available", "is_mpi_available"):
        _replace(name, lambda: True)
    _replace("is_backend_available", lambda backend: True)
    if hasattr(c10d, "_maybe_attach_flight_recorder"):
        # It asks torch's C++ for the name of the group, which has one only if a backend of C++ is in it.
        _replace("_maybe_attach_flight_recorder", lambda *args: None)
    for name in ("TCPStore", "FileStore"):
        _replace(name, SimulatedStore)
    _aim_functional_collectives()
    install_fsdp1()


def _register_backends() -> None:
    def create(prefix_store: Any, group_rank: int, group_size: int, timeout: Any) -> SimulatedGroup:
        return _world_group(group_rank, group_size)

    card = store.world.device_type
    dist.Backend.register_backend(_NAME, create, devices=["cpu", card] if card != "cpu" else ["cpu"])
    for name, device in _CARD_LIBRARIES.items():
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
        if not 0 <= number < n_ranks:
            raise ValueError(f"rank {number} is not one of the {n_ranks} ranks of the job: they count from 0")
        original(backend=_NAME, store=SimulatedStore(), rank=number, world_size=n_ranks)
        group = c10d._get_default_group()
        name, _ = _library(_wanted_backend)
        c10d._world.pg_map[group] = (name, c10d._world.pg_map[group][1])
        c10d._world.pg_backend_config[group] = ",".join(f"{device}:{name}" for device in group._devices)

    _replace("init_process_group", init_process_group)


def _library(backend: str) -> tuple[str, tuple[str, ...]]:
    """The name a program gets back for its backend, and the kinds of devices it can serve."""
    card = store.world.device_type
    if ":" in backend:
        pairs = [pair.split(":") for pair in backend.split(",")]
        return backend, tuple(dict.fromkeys(_card_name(pair[0].strip()) for pair in pairs))
    if not backend or backend == "undefined":
        default = {"cuda": "nccl", "npu": "hccl", "xpu": "xccl"}.get(card, "gloo")
        return default, (card,)
    if backend in _CARD_LIBRARIES:
        if card == "cpu":
            raise ValueError(
                f"the backend {backend} needs cards, and the simulated machine has only its CPU: use gloo"
            )
        return backend, (card,)
    return backend, ("cpu",) if card == "cpu" else ("cpu", card)


def _card_name(device: str) -> str:
    """A script written for cuda that was moved to another card still says cuda."""
    return store.world.device_type if device in store.world.aliases else device


# -- parts of the world ------------------------------------------------------------------------------------


def _new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, backend_options: Any = None,
               pg_tag: Any = None, use_local_synchronization: bool = False, group_desc: Any = None,
               device_id: Any = None, sort_ranks: bool = True) -> Any:  # fmt: skip
    """In place of torch's: every rank calls it for every group, so the usual call is for a group of others."""
    world = c10d._get_default_group()
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
    group_name = c10d._process_group_name(members, use_hashed_name=use_local_synchronization)
    group._set_group_name(group_name)
    tables = c10d._world  # those of torch, which has one function to fill them only from 2.13 on
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
    """Without torch's logging of each call: a large job makes tens of thousands of groups, nearly all of others."""
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
            f"a process group was given rank {wrong[0]}, and the job has ranks 0 to {world_size - 1}"
        )
    return members


def _split_group(parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, pg_options: Any = None,
                 group_desc: Any = None, backend: Any = None) -> Any:  # fmt: skip
    parent = parent_pg or c10d._get_default_group()
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
    """As torch's, with the same buffers and calls, but for its comparing and slicing once per rank of the job."""
    if c10d._rank_not_in_group(group):
        return
    members = group or c10d._get_default_group()
    device = c10d._get_object_coll_device(members)
    sent, size = c10d._object_to_tensor(obj, device, members)
    sizes = torch.zeros(members.size(), dtype=torch.long, device=device)
    members.all_gather_single(sizes, size)
    received = torch.empty(members.size() * sent.numel(), dtype=torch.uint8, device=device)
    forget(sent)  # one copy for every rank of a large job is much, and nobody reads them
    members.all_gather_single(received, sent)
    pickled = pickle.dumps(obj)
    for i in range(members.size()):
        object_list[i] = pickle.loads(pickled)  # of this process: a copy for every slot


# -- the rest of torch -------------------------------------------------------------------------------------


def _aim_functional_collectives() -> None:
    """Torch's own C++ makes their results; it must make them on the card of their inputs."""
    for full_name in torch._C._dispatch_get_all_op_names():
        if full_name.startswith("_c10d_functional::") and not full_name.endswith("_wrap_tensor_autograd"):
            _functional.impl(full_name.partition("::")[2], aimed(full_name), "PrivateUse1")


def _replace(name: str, replacement: Any) -> None:
    """Torch's own modules took these names before we came."""
    original = getattr(c10d, name, None) or getattr(dist, name)
    for module in list(sys.modules.values()):
        if (
            getattr(module, "__name__", "").startswith("torch.distributed")
            and getattr(module, name, None) is original
        ):
            setattr(module, name, replacement)
