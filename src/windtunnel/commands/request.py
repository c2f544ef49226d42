"""What the user asked for, checked before anything runs.

options ──> RunRequest ──> check_request ──> task_of(rank)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from windtunnel.capture.task import RankTask
from windtunnel.devices import DeviceProfile
from windtunnel.errors import UsageError
from windtunnel.memory import Allocator

__all__ = ["RunRequest", "check_request", "conf_of_environment", "task_of"]

# Where the settings of an allocator come from: the first variable that is set.
_CONF_VARIABLES = {
    "cuda": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    "cuda-expandable": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    "npu": ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
}
_EXECUTORS = ("local", "ray")


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the user asked for."""

    script: str
    arguments: tuple[str, ...]
    is_module: bool
    device: DeviceProfile
    allocator: str
    allocator_conf: str
    ranks: tuple[int, ...] | None  # None: one of each class of ranks that do the same work
    world_size: int
    nproc_per_node: int
    is_launched: bool
    level: int
    max_steps: int | None
    writes_blocks: bool
    writes_snapshot: bool
    folder: Path
    n_jobs: int | None = None  # None: as many as the executor has room for
    executor: str = "local"  # or "ray", "ray:ADDRESS"
    counts_library_buffers: bool = False  # NCCL's or HCCL's own memory leaves less for the allocator
    is_recording_saves: bool = False  # what autograd saves as well, for rematerialisation

    @property
    def is_list(self) -> bool:
        """The user named ranks, rather than all or as many as needed."""
        return self.ranks is not None and len(self.ranks) < self.world_size


def conf_of_environment(allocator: str) -> str:
    """The allocator settings of the user's environment, as torch reads them."""
    names = _CONF_VARIABLES.get(allocator.partition(":")[0].strip(), ())
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def check_request(request: RunRequest) -> None:
    """Say what is wrong now, not after the run."""
    if request.level not in (0, 1, 2, 3):
        raise UsageError(f"there is no level {request.level}", hint="use level 0 (runs) or 1 (memory)")
    if request.level > 1:
        raise UsageError(f"level {request.level} is not built yet", hint="use level 0 (runs) or 1 (memory)")
    if request.max_steps is not None and request.max_steps < 1:
        raise UsageError(
            f"steps is {request.max_steps}, and a run has at least 1",
            hint="--steps 3 shows the peak of training",
        )
    if request.n_jobs is not None and request.n_jobs < 1:
        raise UsageError(f"jobs is {request.n_jobs}, and at least 1 is needed", hint="leave --jobs out")
    if request.executor.partition(":")[0] not in _EXECUTORS or request.executor.startswith("local:"):
        raise UsageError(
            f"there is no executor {request.executor!r}", hint="use local, ray, or ray:ADDRESS of a cluster"
        )
    _check_ranks(request)
    Allocator.from_spec(request.allocator, conf=request.allocator_conf)


def _check_ranks(request: RunRequest) -> None:
    n_cards, per_node = request.world_size, request.nproc_per_node
    if n_cards < 1:
        raise UsageError(f"the world size is {n_cards}, and a job has at least 1 card", hint="--world-size 8")
    if per_node < 1 or (n_cards > per_node and n_cards % per_node):
        raise UsageError(
            f"world size {n_cards} is not a multiple of the {per_node} cards of one machine",
            hint="change --world-size or --nproc-per-node",
        )
    wrong = [rank for rank in request.ranks or () if not 0 <= rank < n_cards]
    if wrong:
        raise UsageError(
            f"there is no rank {wrong[0]}: world size {n_cards} has ranks 0 to {n_cards - 1}",
            hint=f"raise --world-size to {wrong[0] + 1} or more" if wrong[0] > 0 else "count ranks from 0",
        )


def task_of(request: RunRequest, rank: int) -> RankTask:
    """The task of one rank; makes its folder."""
    folder = request.folder / f"rank{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    return RankTask(
        request.script, request.arguments, request.is_module, request.device, request.allocator,
        request.allocator_conf, rank, request.world_size, request.nproc_per_node, request.is_launched,
        request.level, request.max_steps, request.writes_blocks or request.writes_snapshot,
        str(folder.resolve()), request.is_recording_saves,
    )  # fmt: skip
