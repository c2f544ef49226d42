"""What the user asked for, checked before anything runs.

options ──> RunRequest ──> check_request ──> task_of(rank)
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from windtunnel.capture.routing import BALANCED, Routing
from windtunnel.capture.task import RankTask
from windtunnel.devices import DEFAULT_ASCEND, DeviceProfile
from windtunnel.errors import UsageError
from windtunnel.frameworks import require
from windtunnel.isolation.layer import SharedView, check_keep_folder
from windtunnel.memory import Allocator
from windtunnel.memory.workspace.rows import WorkspaceTable
from windtunnel.session.launchers.launch import Launch

__all__ = ["RunRequest", "check_request", "conf_of_environment", "task_of"]

# Environment variables with allocator settings: the first that is set counts.
_CONF_VARIABLES = {
    "cuda": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    "cuda-expandable": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    "npu": ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
}
_EXECUTORS = ("local", "ray")
_LARGEST_FACTOR = 1_000_000


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the user asked for."""

    script: str
    arguments: tuple[str, ...]
    is_module: bool
    device: DeviceProfile
    allocator: str
    allocator_conf: str
    ranks: tuple[int, ...] | None  # None: one representative of each class of ranks that do the same work
    world_size: int
    nproc_per_node: int
    is_launched: bool
    level: int
    max_steps: int | None
    writes_blocks: bool
    writes_snapshot: bool
    folder: Path
    n_jobs: int | None = None  # None: as many as the executor has slots
    executor: str = "local"  # or "ray", "ray:ADDRESS"
    counts_library_buffers: bool = False  # subtract NCCL's or HCCL's own memory from the usable memory
    is_recording_saves: bool = False  # also record what autograd saves, for rematerialisation
    workspace_file: Path | None = None  # workspaces of custom kernels
    network: str | None = None  # network parameters as text, or a TOML file
    is_measuring: bool = False  # operators are measured on the device of this machine
    tokens_per_step: int | None = None  # None: counted
    trace_ranks: tuple[int, ...] | None = None  # None: a few
    framework: str = "torch"  # or "mindspore"
    writes_page: bool = True  # report.html
    is_network_allowed: bool = False  # the script may connect to other machines
    isolation: str = "auto"  # or "guard": no copy-on-write layer even if one is possible
    keep_files: Path | None = None  # where to copy the files the script wrote; None: nowhere
    checkpointed: tuple[str, ...] = ()  # what if: paths of modules to run under activation checkpointing
    batch_factor: float = 1.0  # what if: batches of DataLoaders this many times as large
    loss_chunks: int = 1  # what if: last projection and cross-entropy in this many chunks
    routing: Routing = Routing()  # noqa: RUF009  # frozen; which experts tokens go to
    device_option: str = ""  # --device as the user wrote it; empty: the name of the device
    misplaced: tuple[str, ...] = ()  # the `arguments` that are options of windtunnel, with their values
    is_advising: bool | None = False  # simulate remedies; None: if it does not fit and the run was short
    launch: Launch | None = None  # the launcher's command line that asked for these workers
    view: SharedView | None = (
        None  # the ranks see the files of this process: a shell script that started them
    )
    typed: tuple[
        str, ...
    ] = ()  # the command that was given instead of a script: its launcher, or a shell script
    began: float = field(default_factory=time.time)  # seconds since the epoch

    @property
    def options(self) -> list[str]:
        """Return the options that repeat this run, to put before the script."""
        found = ["--device", self.device_option or self.device.id]
        typed = self._typed()
        is_told = typed is not None and self.launch is not None and self.launch.world_size is not None
        found += ["--world-size", str(self.world_size)] if self.world_size > 1 and not is_told else []
        found += ["--allocator", self.allocator] if self.allocator != self.device.allocator else []
        found += [part for pattern in self.checkpointed for part in ("--checkpoint", pattern)]
        found += ["--batch-factor", f"{self.batch_factor:g}"] if self.batch_factor != 1 else []
        found += ["--chunk-loss", str(self.loss_chunks)] if self.loss_chunks != 1 else []
        found += ["--routing", self.routing.text] if self.routing.text != BALANCED else []
        return [*found, "-m"] if self.is_module and typed is None else found

    @property
    def words(self) -> list[str]:
        """Return what to write after the options to repeat this run."""
        return self._typed() or [self.script, *self.arguments]

    def _typed(self) -> list[str] | None:
        """The command that was given, with the arguments of this request; None if it was a script, or cannot say so."""
        if not self.typed or self.launch is None:
            return None
        if self.arguments == self.launch.arguments:
            return list(self.typed)
        n_before = len(self.typed) - len(self.launch.arguments)
        if (
            self.typed[n_before:] == self.launch.arguments
        ):  # the script's arguments end a launcher's command line
            return [*self.typed[:n_before], *self.arguments]
        return None  # they are inside a shell script

    @property
    def is_list(self) -> bool:
        """Whether the user listed ranks, rather than all or auto."""
        return self.ranks is not None and len(self.ranks) < self.world_size


def conf_of_environment(allocator: str) -> str:
    """Return the allocator settings from the environment, as torch reads them."""
    names = _CONF_VARIABLES.get(allocator.partition(":")[0].strip(), ())
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def check_request(request: RunRequest) -> None:
    """Raise UsageError for a wrong request, before anything runs."""
    if request.level not in (0, 1, 2, 3):
        raise UsageError(
            f"unknown level {request.level}",
            hint="use 0 (does it run), 1 (memory), 2 (memory with workspaces) or 3 (time)",
        )
    if request.max_steps is not None and request.max_steps < 1:
        raise UsageError(
            f"steps is {request.max_steps}, but a run needs at least 1",
            hint="use --steps 3 to see the peak of training",
        )
    if request.n_jobs is not None and request.n_jobs < 1:
        raise UsageError(f"jobs is {request.n_jobs}, but at least 1 is needed", hint="remove --jobs")
    if request.executor.partition(":")[0] not in _EXECUTORS or request.executor.startswith("local:"):
        raise UsageError(
            f"unknown executor {request.executor!r}", hint="use local, ray, or ray:ADDRESS of a cluster"
        )
    if request.isolation not in ("auto", "guard"):
        raise UsageError(f"unknown isolation {request.isolation!r}", hint="use auto or guard")
    if request.keep_files is not None:
        check_keep_folder(request.keep_files)
        if request.executor != "local":
            raise UsageError("--keep-files works for local runs only", hint="remove --executor")
    _check_framework(request)
    _check_what_if(request)
    _check_ranks(request)
    _check_time(request)
    Allocator.from_spec(request.allocator, conf=request.allocator_conf)


def _check_what_if(request: RunRequest) -> None:
    if not 0 < request.batch_factor < _LARGEST_FACTOR:
        raise UsageError(
            f"the batch factor is {request.batch_factor:g}, but it must be between 0 and {_LARGEST_FACTOR:,}",
            hint="--batch-factor 2 doubles the batches of every DataLoader",
        )
    if request.loss_chunks < 1:
        raise UsageError(
            f"the number of chunks is {request.loss_chunks}, but at least 1 is needed",
            hint="--chunk-loss 8 computes the cross-entropy in 8 chunks",
        )
    is_what_if = request.checkpointed or request.batch_factor != 1 or request.loss_chunks != 1
    if is_what_if and request.framework == "mindspore":
        raise UsageError(
            "--checkpoint, --batch-factor and --chunk-loss work for PyTorch scripts only",
            hint="change the script instead",
        )
    if request.routing.text != BALANCED and request.framework == "mindspore":
        raise UsageError("--routing works for PyTorch scripts only", hint="remove --routing")


def _check_framework(request: RunRequest) -> None:
    if request.executor == "local":
        require(request.framework)
    if request.framework != "mindspore":
        return
    if request.device.kind != "npu":
        raise UsageError(
            f"MindSpore scripts are simulated on Ascend devices, and {request.device.id} is not one",
            hint=f"remove --device to use {DEFAULT_ASCEND}, or choose another from `windtunnel devices`",
        )
    given = {"--snapshot": request.writes_snapshot, "--measure": request.is_measuring}
    for option, is_given in given.items():
        if is_given:
            raise UsageError(
                f"{option} works for PyTorch scripts only, and {request.script} uses MindSpore",
                hint=f"remove {option}",
            )


def _check_ranks(request: RunRequest) -> None:
    n_devices, per_node = request.world_size, request.nproc_per_node
    if n_devices < 1:
        raise UsageError(
            f"the world size is {n_devices}, but a job needs at least 1 device", hint="--world-size 8"
        )
    if per_node < 1 or (n_devices > per_node and n_devices % per_node):
        raise UsageError(
            f"world size {n_devices} is not a multiple of the {per_node} devices per machine",
            hint="change --world-size or --nproc-per-node",
        )
    wrong = [rank for rank in request.ranks or () if not 0 <= rank < n_devices]
    if wrong:
        raise UsageError(
            f"there is no rank {wrong[0]}: world size {n_devices} has ranks 0 to {n_devices - 1}",
            hint=f"raise --world-size to {wrong[0] + 1} or more" if wrong[0] > 0 else "count ranks from 0",
        )


def _check_time(request: RunRequest) -> None:
    """Check the options of levels 2 and 3, and read their files now rather than after the run."""
    given = {
        "--workspace": (2, request.workspace_file is not None),
        "--network": (3, request.network is not None),
        "--measure": (3, request.is_measuring),
        "--tokens-per-step": (3, request.tokens_per_step is not None),
        "--trace-ranks": (3, request.trace_ranks is not None),
    }
    for option, (level, is_given) in given.items():
        if is_given and request.level < level:
            raise UsageError(f"{option} has no effect at level {request.level}", hint=f"add --level {level}")
    if request.tokens_per_step is not None and request.tokens_per_step < 1:
        raise UsageError(
            f"tokens per step is {request.tokens_per_step}, but at least 1 is needed", hint="remove it"
        )
    if request.network is not None and request.world_size == 1:
        raise UsageError("--network has no effect on a job with 1 device", hint="add --world-size")
    beyond = [rank for rank in request.trace_ranks or () if rank >= request.world_size]
    if beyond:
        raise UsageError(
            f"there is no rank {beyond[0]} to trace: world size {request.world_size} has ranks 0 to {request.world_size - 1}",
            hint="--trace-ranks 0",
        )
    if request.workspace_file is not None:
        WorkspaceTable.built_in().with_file(request.workspace_file)
    device = request.device
    if request.level >= 3 and device.kind != "cpu" and not request.is_measuring and device.bandwidth_gbs <= 1:
        raise UsageError(  # 1 is the default of a file without bandwidth_gbs
            f"level 3 needs the speed of {device.id}: its bandwidth_gbs is {device.bandwidth_gbs:g}",
            hint="add bandwidth_gbs and bf16_tflops to its file, or use --measure on a machine that has one",
        )
    if request.level >= 3 and request.world_size > 1:
        from windtunnel.timing.network.links import check_network, network_of  # late: only level 3 needs it

        network = network_of(request.device, request.nproc_per_node, request.network)
        check_network(network, request.world_size)


def task_of(request: RunRequest, rank: int) -> RankTask:
    """Return the task of one rank; creates its folder."""
    folder = request.folder / f"rank{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    launch = request.launch
    return RankTask(
        request.script, _arguments_of(request, rank), request.is_module, request.device, request.allocator,
        request.allocator_conf, rank, request.world_size, request.nproc_per_node, request.is_launched,
        request.level, request.max_steps, request.writes_blocks or request.writes_snapshot,
        str(folder.resolve()), request.is_recording_saves, request.framework, request.checkpointed,
        request.batch_factor, request.loss_chunks, request.routing.as_fields(),
        {} if launch is None else launch.variables_of(rank), request.began,
    )  # fmt: skip


def _arguments_of(request: RunRequest, rank: int) -> tuple[str, ...]:
    """The script's arguments; some launchers put the local rank before them."""
    if request.launch is None:
        return request.arguments
    return replace(request.launch, arguments=request.arguments).arguments_of(rank)
