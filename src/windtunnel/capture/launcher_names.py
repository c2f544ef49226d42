"""Programs and modules that start the workers of a job, by the names that people type."""

from __future__ import annotations

__all__ = ["LAUNCHERS", "MODULES"]

LAUNCHERS = (
    "torchrun", "msrun", "deepspeed", "accelerate", "accelerate-launch", "mpirun", "mpiexec", "orterun", "srun",
)  # fmt: skip
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "torch_npu.distributed.run": "torchrun",
    "mindspore.parallel.cluster.run": "msrun",
    "accelerate.commands.launch": "accelerate-launch",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
}
