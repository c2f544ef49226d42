"""One rank of a process group of any size, with any backend name: every collective returns at once.

    init_process_group("nccl") ──> torch's own fake group of this rank and world size
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.recorder import Recorder

__all__ = ["install_distributed"]


def install_distributed(recorder: Recorder, rank: int, world_size: int) -> None:
    """Make init_process_group simulate the peers of this rank."""
    if not torch.distributed.is_available():
        return
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    original = dist.init_process_group

    def init_process_group(backend: Any = None, init_method: Any = None, *args: Any, **kwargs: Any) -> None:
        wanted = {k: kwargs[k] for k in ("rank", "world_size") if kwargs.get(k, -1) not in (-1, None)}
        original(
            backend="fake",
            store=FakeStore(),
            rank=wanted.get("rank", rank),
            world_size=wanted.get("world_size", world_size),
        )

    dist.init_process_group = init_process_group  # type: ignore[assignment]
    dist.distributed_c10d.init_process_group = init_process_group  # type: ignore[assignment]
    new_group = dist.new_group

    def simulated_new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        return new_group(ranks, backend="fake", **{k: v for k, v in kwargs.items() if k == "group_desc"})

    dist.new_group = simulated_new_group  # type: ignore[assignment]
    dist.distributed_c10d.new_group = simulated_new_group  # type: ignore[assignment]
