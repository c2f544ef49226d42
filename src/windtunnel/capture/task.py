"""The task of one simulated rank, sent between processes and machines as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from windtunnel.capture.routing import Routing
from windtunnel.devices import DeviceProfile

__all__ = ["RankTask"]


@dataclass(frozen=True, slots=True)
class RankTask:
    """Run this script as this rank on this device and write the recording here."""

    script: str  # a path, or a module name when is_module
    arguments: tuple[str, ...]
    is_module: bool
    device: DeviceProfile
    allocator: str
    allocator_conf: str
    rank: int
    world_size: int
    nproc_per_node: int
    is_launched: bool  # torchrun's variables are set for the script
    level: int
    max_steps: int | None
    is_tracking_stacks: bool
    folder: str
    is_recording_saves: bool = False  # record what autograd saves and loads, for `windtunnel remat`
    framework: str = "torch"  # or "mindspore"
    checkpointed: tuple[str, ...] = ()  # what-if: paths of modules to run under activation checkpointing
    batch_factor: float = 1.0  # what-if: scales the batch size of every DataLoader
    loss_chunks: int = 1  # what-if: the last projection and the cross-entropy run in this many chunks
    routing: dict[str, Any] = field(default_factory=lambda: Routing().as_fields())
    variables: dict[str, str] = field(default_factory=dict)  # what the job's launcher sets for this worker
    job_began: float = 0.0  # seconds since the epoch, before any rank of the job ran

    @property
    def recording_path(self) -> Path:
        return Path(self.folder) / "recording.arrows"

    @property
    def local_rank(self) -> int:
        return self.rank % self.nproc_per_node

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankTask:
        fields = json.loads(text)
        for name in ("arguments", "checkpointed"):
            fields[name] = tuple(fields[name])
        device = fields["device"]
        fields["device"] = DeviceProfile(**{**device, "capability": tuple(device["capability"])})
        return cls(**fields)
