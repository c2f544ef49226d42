"""One rank of N as a MindSpore script sees it, with no other rank and no communication library.

    init, get_rank, create_group ──> World        ops.AllReduce, mint.distributed.all_gather ──> shapes, a line of the tracker

Results of collectives have the right shape, and gradients flow through them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from mindspore import mint
from mindspore.common._grad_function import _Function
from mindspore.communication import _comm_helper as helper
from mindspore.communication import management
from mindspore.ops.auto_generate import gen_ops_prim
from mindspore.ops.operations import comm_ops

from windtunnel.capture.mindspore.meta.device import MetaDevice, tensors_in
from windtunnel.capture.mindspore.meta.tensors import replace_function

__all__ = ["World", "install_world"]

_WORLD = "hccl_world_group"
_PEERS = ("dst", "src", "dest_rank", "src_rank", "root_rank")  # ranks within the group
# Primitives that return a new tensor: how the first dimension changes, and what backward does.
_GROWS = {"AllGather": 1, "ReduceScatter": -1}
_BACKWARD = {"AllGather": "ReduceScatter", "ReduceScatter": "AllGather"}


@dataclass
class World:
    """Replaces MindSpore's CollectiveManager."""

    rank: int
    size: int
    per_node: int
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    is_up: bool = False

    def ranks(self, group: str) -> tuple[int, ...]:
        return self.groups.get(group, tuple(range(self.size)))

    def get_instance(self) -> World:
        return self

    def initialized(self) -> bool:
        return self.is_up

    def get_rank_id(self, group: str) -> int:
        ranks = self.ranks(group)
        return ranks.index(self.rank) if self.rank in ranks else -1

    def get_group_size(self, group: str) -> int:
        return len(self.ranks(group))

    def get_local_rank_id(self, group: str) -> int:
        return self._here(group).index(self.rank)

    def get_local_group_size(self, group: str) -> int:
        return len(self._here(group))

    def get_world_rank_from_group_rank(self, group: str, rank: int) -> int:
        return self.ranks(group)[rank]

    def get_group_rank_from_world_rank(self, rank: int, group: str) -> int:
        return self.ranks(group).index(rank)

    def get_group_ranks(self, group: str) -> list[int]:
        return list(self.ranks(group))

    def get_group_map(self) -> dict[str, list[int]]:
        return {name: list(ranks) for name, ranks in self.groups.items()}

    def create_group(self, group: str, ranks: Sequence[int], *_: Any) -> bool:
        self.groups[group] = tuple(sorted(ranks))
        return True

    def destroy_group(self, group: str) -> bool:
        return self.groups.pop(group, None) is not None

    def remove_group_info(self, group: str) -> None:
        self.groups.pop(group, None)

    def get_comm_name(self, group: str) -> str:
        return group

    def wait_all_comm_init(self) -> None:
        pass

    def _here(self, group: str) -> list[int]:
        node = self.rank // self.per_node
        return [rank for rank in self.ranks(group) if rank // self.per_node == node]


def install_world(world: World, device: MetaDevice) -> None:
    """Before the script's first line."""
    replace_function(helper.CollectiveManager, world)

    def come_up(*_: Any, **__: Any) -> None:
        world.is_up = True

    def init_with_store(*_: Any, **__: Any) -> None:
        management.init("hccl")

    for name, instead in (
        ("init_hccl", come_up), ("finalize_hccl", _nothing), ("_check_hccl", _nothing), ("_check_parallel_envs", _nothing),
        ("_set_elegant_exit_handle", _nothing), ("_init_with_store", init_with_store),
    ):  # fmt: skip
        replace_function(getattr(management, name), instead)
    for name in ("TCPStore", "_finalize_collective"):
        replace_function(getattr(mint.distributed.distributed, name), _nothing)
    collectives = _Collectives(world, device)
    for module, prefixes in ((gen_ops_prim, ("DistComm", "InnerComm")), (comm_ops, ("",))):
        for name, kind in list(vars(module).items()):
            if isinstance(kind, type) and kind.__module__ == module.__name__ and name.startswith(prefixes):
                collectives.install(name, kind)


def _nothing(*_: Any, **__: Any) -> None:
    return None


class _Collectives:
    """Simulates collectives."""

    def __init__(self, world: World, device: MetaDevice) -> None:
        self._world, self._device = world, device

    def install(self, name: str, kind: Any) -> None:
        plain = name.removeprefix("InnerComm")
        if name.startswith("DistComm"):
            kind.__call__ = self._in_place(name, kind.__call__)
        elif plain in ("Send", "Isend", "Barrier", "Reduce"):
            kind.__call__ = self._passing(name, kind)
        elif plain in ("Receive", "Irecv"):
            kind.__call__ = self._receiving(name, kind)
        elif plain in ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "AlltoAll", "AllToAllV"):
            kind.__call__ = self._computing(name, kind)

    # -- the forms of a collective -------------------------------------------------------------------------

    def _in_place(self, name: str, original: Callable) -> Callable:
        """A collective of mint.distributed: it writes to its first argument."""
        words = _reader(original)

        @wraps(original)
        def call(primitive: Any, *args: Any, **kwargs: Any) -> Any:
            given = words(primitive, args, kwargs)
            first = next(iter(tensors_in([given[key] for key in list(given)[:1]])), None)
            filled = list(tensors_in(next(iter(given.values()))))
            self._record(name, list(tensors_in(list(given.values()))), filled, given)
            return first if first is not None else mint.zeros((1,))

        return call

    def _passing(self, name: str, kind: type) -> Callable:
        """A collective that returns its argument."""
        words = _reader(kind.__call__)

        def call(primitive: Any, *args: Any, **kwargs: Any) -> Any:
            given = words(primitive, args, kwargs)
            tensors = list(tensors_in(args))
            self._record(name, tensors, tensors, given)
            return tensors[0] if tensors else None

        return call

    def _receiving(self, name: str, kind: type) -> Callable:
        words = _reader(kind.__call__)

        def call(primitive: Any, *args: Any, **kwargs: Any) -> Any:
            given = words(primitive, args, kwargs)
            result = self._device.new_tensor(tuple(given["shape"]), given["dtype"])
            self._record(name, [], [result], given)
            return result

        return call

    def _computing(self, name: str, kind: type) -> Callable:
        """A collective with a new result, and a gradient."""
        words, plain = _reader(kind.__call__), name.removeprefix("InnerComm")
        collectives = self

        def make(tensor: Any, plain: str, given: dict[str, Any]) -> Any:
            result = collectives._device.new_tensor(collectives._shape(tensor, plain, given), tensor.dtype)
            collectives._record(plain, [tensor], [result], given)
            return result

        class Collective(_Function):
            @staticmethod
            def forward(ctx: Any, tensor: Any, given: dict[str, Any]) -> Any:
                ctx.given = given
                return make(tensor, plain, given)

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                given = ctx.given | _turned_round(ctx.given)
                return make(gradient, _BACKWARD.get(plain, plain), given), None

        def call(primitive: Any, *args: Any, **kwargs: Any) -> Any:
            given = words(primitive, args, kwargs)
            tensors = list(tensors_in(args))
            results = tuple(Collective.apply(tensor, given) for tensor in tensors[:1])
            return results if args and isinstance(args[0], tuple) else results[0]

        return call

    # -- shapes and rows -----------------------------------------------------------------------------------

    def _shape(self, tensor: Any, plain: str, given: dict[str, Any]) -> tuple[int, ...]:
        size = len(self._world.ranks(_group(given)))
        shape = list(tensor.shape)
        if plain in _GROWS:
            shape[0] = shape[0] * size if _GROWS[plain] > 0 else shape[0] // size
        elif plain == "AlltoAll":
            shape[given["split_dim"]] //= given["split_count"]
            shape[given["concat_dim"]] *= given["split_count"]
        elif plain == "AllToAllV":
            shape = [sum(given["recv_numel_list"])] if given["recv_numel_list"] else shape
        return tuple(shape)

    def _record(self, name: str, read: Sequence[Any], written: Sequence[Any], given: dict[str, Any]) -> None:
        group = _group(given)
        ranks = self._world.ranks(group)
        attributes = {"group": group, "comm_rank": " ".join(map(str, ranks))}
        peer = next((given[key] for key in _PEERS if isinstance(given.get(key), int)), None)
        if peer is not None and 0 <= peer < len(ranks):
            attributes["src_rank"] = str(ranks[peer])
        self._device.record(name, read, written, **attributes)


def _reader(call: Callable) -> Callable[[Any, tuple, dict], dict[str, Any]]:
    """The arguments of a primitive's constructor and of its call, by name."""
    signature = inspect.signature(call)

    def read(primitive: Any, args: tuple, kwargs: dict) -> dict[str, Any]:
        bound = signature.bind(primitive, *args, **kwargs)
        bound.apply_defaults()
        values = dict(list(bound.arguments.items())[1:])
        values.pop("args", None)
        made_with = {key: value for key, value in vars(primitive).items() if not key.startswith("_")}
        return values | {key: value for key, value in made_with.items() if key not in values}

    return read


def _turned_round(given: dict[str, Any]) -> dict[str, Any]:
    pairs = (("split_dim", "concat_dim"), ("send_numel_list", "recv_numel_list"))
    return {
        one: given[other]
        for pair in pairs
        for one, other in (pair, pair[::-1])
        if all(key in given for key in pair)
    }


def _group(given: dict[str, Any]) -> str:
    group = given.get("group")
    return group if isinstance(group, str) else _WORLD
