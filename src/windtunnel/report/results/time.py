"""What a run found about time, as records: exactly what report.json says.

WorldTime, StepProfile of each rank ──> TimeResult, RankTimeResult ──> report.json, terminal, time_verdict
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windtunnel.cluster.step_time import RankTime

if TYPE_CHECKING:
    from windtunnel.timing.step_profile import StepProfile

__all__ = ["RankTimeResult", "TimeResult", "late_types"]


@dataclass(frozen=True)
class RankTimeResult:
    """The steady step of one simulated rank."""

    time: RankTime
    profile: StepProfile
    trace: str = ""  # file, relative to the run's folder
    n_trace_events_left_out: int = 0


def late_types() -> dict[str, type]:
    """Types of the fields above that only level 3 imports."""
    from windtunnel.timing.step_profile import StepProfile

    return {"StepProfile": StepProfile}


@dataclass(frozen=True)
class TimeResult:
    """The steady step of the job."""

    step_seconds: float
    warm_up_seconds: float | None
    all_steps_seconds: tuple[float, ...]
    n_steps: int  # optimizer steps; 0: the program took none, and counts as one step
    source: str  # where the times of operators come from: "measured on ...", "model of h100-80gb ..."
    tokens_per_step: int | None = None
    tokens_basis: str = ""  # how they were counted
    tokens_per_second: float | None = None
    model_flops: int = 0  # of the whole job, each step
    hardware_flops: int = 0
    peak_flops: float = 0.0  # of all devices together, per second
    peak_of: str = ""  # "bf16"
    bubble_share: float = 0.0
    exposed_seconds: dict[str, float] = field(default_factory=dict)  # axis -> mean over the ranks
    peers_seconds: dict[str, float] = field(default_factory=dict)
    slowest_rank: int | None = None
    slowest_why: str = ""
    bound_by: str = ""  # one sentence
    network: str = ""
    notes: tuple[str, ...] = ()

    @property
    def model_flops_utilisation(self) -> float | None:
        return self._share(self.model_flops)

    @property
    def hardware_flops_utilisation(self) -> float | None:
        return self._share(self.hardware_flops)

    def _share(self, flops: int) -> float | None:
        if not (flops and self.peak_flops and self.step_seconds):
            return None
        return flops / self.step_seconds / self.peak_flops
