"""`torch.distributed.ProcessGroupNCCL` and its options, which only a CUDA build of torch has.

options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True); options.config.max_ctas = 8
dist.new_group(ranks, pg_options=options)          ──> kept with the group; they change no memory of ours
group._get_backend(torch.device("cuda"))           ──> a ProcessGroupNCCL, for groups whose library is NCCL
"""

from __future__ import annotations

import datetime
from typing import Any, ClassVar

import torch._C._distributed_c10d as bindings
import torch.distributed as dist
from torch.distributed import constants
from torch.distributed import distributed_c10d as c10d

from windtunnel.capture.pytorch.world.work import SimulatedBackend

__all__ = ["ProcessGroupNCCL", "install_nccl"]

_TIMEOUT = datetime.timedelta(minutes=10)
_UNDEFINED = -(2**31)  # what NCCL reads as "choose yourself"
_VERSION = (2, 27, 3)
_BaseOptions: Any = bindings.Backend.Options


class _NCCLConfig:
    """`ncclConfig_t`, with NCCL's own defaults."""

    def __init__(self) -> None:
        self.blocking = self.cga_cluster_size = self.min_ctas = self.max_ctas = _UNDEFINED
        self.split_share = self.shrink_share = self.traffic_class = self.collnet_enable = _UNDEFINED
        self.cta_policy = self.nvls_ctas = self.n_channels_per_net_peer = _UNDEFINED
        self.nvlink_centric_sched = _UNDEFINED
        self.net_name: str | None = None
        self.comm_name: str | None = None

    def unsafe_get_ptr(self) -> int:
        return 0


class _Options(_BaseOptions):
    """`ProcessGroupNCCL.Options`."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__("nccl", _TIMEOUT)
        self.is_high_priority_stream = is_high_priority_stream
        self.config = _NCCLConfig()
        self.split_from: Any = None
        self.split_color = 0

    def __copy__(self) -> _Options:
        made = _Options(self.is_high_priority_stream)
        made.__dict__.update(self.__dict__)
        made._timeout = self._timeout
        return made

    def __deepcopy__(self, memo: Any) -> _Options:
        made = self.__copy__()
        made.config = _NCCLConfig()
        made.config.__dict__.update(self.config.__dict__)
        return made


class ProcessGroupNCCL(SimulatedBackend):
    """NCCL under a simulated group: timeouts, aborts and memory pools are accepted, and do nothing."""

    Options = _Options
    NCCLConfig = _NCCLConfig
    NCCL_CTA_POLICY_DEFAULT: ClassVar[int] = 0
    NCCL_CTA_POLICY_EFFICIENCY: ClassVar[int] = 1
    NCCL_CTA_POLICY_ZERO: ClassVar[int] = 2
    uid = 0

    def __init__(
        self, store: Any = None, rank: int = 0, size: int = 1, options: _Options | None = None
    ) -> None:
        super().__init__("nccl")
        self._rank, self._size = rank, size
        self.options = options if isinstance(options, _Options) else _Options()

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def comm_split_count(self) -> int:
        return 0

    def _is_initialized(self) -> bool:
        return True

    def _end_time_estimate(self) -> float:
        return 0.0

    def get_error(self) -> Any:
        return bindings.ErrorType.SUCCESS

    @staticmethod
    def get_build_nccl_version() -> tuple[int, int, int]:
        return _VERSION

    get_runtime_nccl_version = get_build_nccl_version


def install_nccl() -> None:
    """Put the class where a CUDA build has it; a CUDA build's own would look for a driver."""
    ProcessGroupNCCL.__module__ = c10d.__name__
    for module in (bindings, c10d, dist):
        vars(module)["ProcessGroupNCCL"] = ProcessGroupNCCL
    c10d._NCCL_AVAILABLE = True
    for module in (c10d, constants):
        vars(module)["default_pg_nccl_timeout"] = _TIMEOUT
