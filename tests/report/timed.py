"""A run that was timed: two stages of a pipeline, the second slower than the first."""

from __future__ import annotations

from dataclasses import replace

from tests.report.runs import FITTING, run_of
from windtunnel.cluster.step_time import RankTime
from windtunnel.report.results.time import RankTimeResult, TimeResult
from windtunnel.timing.step_profile import OperatorTime, StepProfile

__all__ = ["FAST", "PROFILE", "SLOW", "TIME", "timed_rank", "timed_run"]

FAST = RankTime(
    rank=0,
    step_seconds=1.0,
    compute_seconds=0.5,
    exposed_seconds={"tp": 0.125, "dp": 0.0},
    peers_seconds={"tp": 0.05},
    bubble_seconds=0.2,
    streams_seconds=0.025,
    host_seconds=0.1,
    network_seconds={"tp": 0.25, "dp": 0.125},
)
SLOW = replace(
    FAST, rank=1, compute_seconds=0.75, bubble_seconds=0.0, peers_seconds={}, exposed_seconds={"tp": 0.125}
)
PROFILE = StepProfile(
    seconds=0.75,
    operators=(
        OperatorTime("aten.mm", "matmul", "4096x4096 bf16, 4096x11008 bf16", 64, 0.5, 312.25, 100.0, "model"),
        OperatorTime(
            "aten.cat", "copy", "2x3 f32, 2x3 f32, 2x3 f32, and 4 more", 2, 0.15, 0.0, 1234.4, "model"
        ),
        OperatorTime("(kernels of the compiler)", "fused", "", 3, 0.1, 0.0, 0.0, "model"),
    ),
    by_class={"matmul": 0.5, "copy": 0.15, "fused": 0.1},
    by_module={f"layers.{i}.mlp": 0.1 for i in range(6)} | {"": 0.148, "tiny": 0.002},
    by_phase={"forward": 0.25, "backward": 0.5},
    model_flops=3 * 10**14,
    hardware_flops=4 * 10**14,
    n_kernels=69,
    bounded={"mine.odd": 2},
    bounded_seconds=0.01,
    unsettled={"aten.cat 2x3 f32": 0.5},
)
TIME = TimeResult(
    step_seconds=1.0,
    warm_up_seconds=1.25,
    all_steps_seconds=(1.25, 1.0, 1.0),
    n_steps=3,
    source="model of a100-80gb",
    tokens_per_step=8192,
    tokens_basis="4,096 looked up in the largest embedding x 2 data-parallel shards",
    tokens_per_second=8192.0,
    model_flops=3 * 10**14,
    hardware_flops=4 * 10**14,
    peak_flops=6e14,
    peak_of="bf16",
    bubble_share=0.1,
    exposed_seconds={"dp": 0.0, "tp": 0.125},
    peers_seconds={"tp": 0.025},
    slowest_rank=1,
    slowest_why="it computes 250.0 ms longer than the median rank",
    bound_by="50 % of the step is matrix products.",
    network="NVLink 300 GB/s inside a node of 8",
    notes=("only a test",),
)


def timed_rank(time: RankTime, profile: StepProfile = PROFILE):
    return replace(
        FITTING,
        rank=time.rank,
        step_time_us=time.step_seconds * 1e6,
        time=RankTimeResult(time, profile, f"rank{time.rank}/trace_view.json", 7),
    )


def timed_run(*ranks, time=TIME):
    return replace(run_of(*(ranks or (timed_rank(FAST), timed_rank(SLOW)))), level=3, time=time)
