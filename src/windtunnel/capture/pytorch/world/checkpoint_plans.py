"""What the ranks of a distributed checkpoint tell its coordinator: which pieces of which tensors each of them writes.

    torch.distributed.checkpoint: gather_object(plan) ──> each rank posts its plan, the coordinator fetches all of them

Elsewhere a gathered object counts as the same on every rank. Plans differ: with copies of its own plan the coordinator would
describe a checkpoint that lacks what the other ranks write. In a job of more than `_FEW_RANKS` ranks not all of them
are simulated, so there the copies stay, and the coordinator does not check that they cover every tensor.
"""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from windtunnel.capture.pytorch.world.process_group import SimulatedGroup

__all__ = ["gathering_plans"]

_FEW_RANKS = 16
_CHECKPOINT = "torch.distributed.checkpoint"


def gathering_plans(original: Callable[..., None], default_group: Callable[[], Any]) -> Callable[..., None]:
    """`gather_object` that gathers what each rank really has, for torch's distributed checkpoints."""
    n_calls: Counter[str] = Counter()

    def gather_object(
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
    ) -> None:
        original(obj, object_gather_list, dst, group, group_dst)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        members = group or default_group()
        if not caller.startswith(_CHECKPOINT) or not isinstance(members, SimulatedGroup):
            return
        if SimulatedGroup.messages.is_alone or members.size() > _FEW_RANKS:
            _trust_copies()
            return
        n_calls[members.key] += 1
        key = f"plan:{members.key}:{n_calls[members.key]}"
        own = members.rank()
        if object_gather_list is None:
            SimulatedGroup.messages.post(f"{key}:{own}", pickle.dumps(obj))
            return
        for i, rank in enumerate(members.ranks):
            payload = SimulatedGroup.messages.fetch(f"{key}:{i}", rank) if i != own else None
            object_gather_list[i] = obj if payload is None else pickle.loads(payload)  # from our own ranks

    return gather_object


def _trust_copies() -> None:
    planner = sys.modules.get(f"{_CHECKPOINT}.default_planner")
    if planner is not None:
        planner._validate_global_plan = lambda *args: []  # type: ignore[attr-defined]  # it is torch's own module
