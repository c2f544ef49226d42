"""The submodules of `torch_npu` that do not depend on the simulated device: what they are called and what they have.

torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options() ──> an object with the real one's fields
torch_npu.utils.collect_env.get_cann_version()            ──> the CANN of ASCEND_HOME_PATH, or the one simulated

Flags of the driver (thread affinity, silent data corruption) are taken and change nothing.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

__all__ = ["CANN_VERSION", "TORCH_NPU_VERSION", "torch_npu_modules"]

CANN_VERSION = "8.3.RC1"  # what programs are told where no CANN is installed
_SOC_VERSIONS = {
    "Ascend910B1": 220,
    "Ascend910B2": 221,
    "Ascend910B2C": 222,
    "Ascend910B3": 223,
    "Ascend910B4": 224,
}
TORCH_NPU_VERSION = f"{torch.__version__.partition('+')[0]}+simulated"


def torch_npu_modules() -> dict[str, dict[str, Any]]:
    """Module name -> its attributes."""
    c10d = {"ProcessGroupHCCL": _ProcessGroupHCCL, "ProcessGroupLCCL": _ProcessGroupHCCL}
    distributed = {"is_hccl_available": lambda: True, "is_available": lambda: True}
    affinity = {"set_thread_affinity": _ignore, "reset_thread_affinity": _ignore}
    environment = {
        "get_cann_version": _cann_version,
        "get_torch_npu_version": lambda: TORCH_NPU_VERSION,
        "get_pretty_env_info": _environment_text,
        "main": lambda: None,
    }
    return {
        "torch_npu": {
            "unsupported_dtype": [
                torch.quint8,
                torch.quint4x2,
                torch.quint2x4,
                torch.qint32,
                torch.qint8,
            ],
            "erase_stream": _ignore,
        },
        "torch_npu.version": {"__version__": TORCH_NPU_VERSION, "git_version": "simulated"},
        "torch_npu._C": {"_npu_get_soc_version": _soc_version},
        "torch_npu._C._distributed_c10d": c10d,
        "torch_npu._C._profiler": {},
        "torch_npu.distributed": distributed,
        "torch_npu.distributed.distributed_c10d": {},
        "torch_npu.distributed.fsdp": {},
        "torch_npu.utils": {
            "get_cann_version": _cann_version,
            "FlopsCounter": _FlopsCounter,
            "register_asd_hook": _ignore,
            "set_asd_loss_scale": _ignore,
            "save_async": torch.save,
            **affinity,
        },
        "torch_npu.utils.collect_env": environment,
        "torch_npu.utils.flops_count": {"FlopsCounter": _FlopsCounter},
        "torch_npu.utils.affinity": affinity,
        "torch_npu.utils.asd_detector": {"register_asd_hook": _ignore, "set_asd_loss_scale": _ignore},
        "torch_npu.optim": {},
        "torch_npu.contrib": _contributed(),
        "torch_npu.contrib.function": {},
        "torch_npu.contrib.module": _contributed(),
        "torch_npu.dynamo": {},
        "torch_npu.testing": {},
        "torch_npu.asd": {},
    }


def _ignore(*_: Any, **__: Any) -> None:
    """A setting of the driver, which a dry run does not have."""


# -- environment --------------------------------------------------------------------------------------------


def _cann_version(module: str = "CANN") -> str:
    """The version in the install file below ASCEND_HOME_PATH, as torch_npu reads it; else the simulated one."""
    home = os.environ.get("ASCEND_HOME_PATH")
    for path in sorted(Path(home).rglob("ascend_*_install.info")) if home else ():
        found = re.search(
            r"^version\s*=\s*(\S+)", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
        )
        if found:
            return found.group(1)
    return CANN_VERSION


def _environment_text() -> str:
    return f"PyTorch version: {torch.__version__}\nTorch-npu version: {TORCH_NPU_VERSION}\nCANN: {_cann_version()}"


def _soc_version() -> int:
    """torch_npu's number for the chip."""
    name = torch.npu.get_device_name()  # type: ignore[attr-defined]  # registered by the simulated device
    return _SOC_VERSIONS.get(name, -1)


class _FlopsCounter:
    """Counts nothing: level 3 counts flops of every operator."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def get_flops(self) -> list[int]:
        return [0, 0]


# -- process groups -----------------------------------------------------------------------------------------


class _Options:
    """The options of an HCCL group: fields that programs set and read back."""

    hccl_config: Any = None  # programs ask the class whether it has one

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.op_timeout = self._timeout = timedelta(minutes=30)
        self.global_ranks_in_group: list[int] = []
        self.group_id = ""
        self.hccl_config = {}


class _ProcessGroupHCCL:
    """The class for type checks; groups themselves come from torch.distributed."""

    Options = _Options


# -- modules ------------------------------------------------------------------------------------------------


def _contributed() -> dict[str, Any]:
    """The modules of torch_npu.contrib that are torch's own under another name."""
    return {"SiLU": torch.nn.SiLU, "Swish": torch.nn.SiLU, "Mish": torch.nn.Mish}
