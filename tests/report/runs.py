"""Results to render: one rank of a small training, and one that does not fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from windtunnel.isolation.file_changes import FileChange, Files
from windtunnel.memory.analysis import Moment, OutOfMemory, Timeline
from windtunnel.memory.attribution import ROLES, LiveTensors, ModuleShare, RoleBytes
from windtunnel.report.results.run import DeviceResult, RankResult, RunResult, UnknownValue
from windtunnel.units import GIB

A100 = DeviceResult("a100-80gb", 80 * GIB)
ASCEND = DeviceResult("ascend-910b-64gb", 64 * GIB)


FILES = Files(
    "guard",
    "a sentence of the guard",
    True,
    (
        FileChange("written", "/data/new.pt", 2 * GIB, None),
        FileChange("removed", "/data/checkpoint-100", None, 3 * GIB),
        FileChange("moved", "/data/<b>.bak", 5, None, moved_from="/data/model.pt"),
    ),
    n_more=7,
    more_bytes=1024,
    notes=("read-only here: /mnt",),
)


def timeline(points=6, peak=60 * GIB):
    live = np.linspace(0, peak, points).astype(np.int64)
    by_role = np.zeros((points, len(ROLES)), np.int64)
    by_role[:, 0], by_role[:, 3] = live // 4, live - live // 4
    step = 1 + np.arange(points) * 3 // points
    return Timeline(np.arange(points) * 100, step, live, live + live // 8, by_role)


FITTING = RankResult(
    rank=0,
    status="ok",
    steps=3,
    device_memory_bytes=80 * GIB,
    usable_memory_bytes=79 * GIB,
    base_address="0x7f0000000000",
    peak_bytes=60 * GIB,
    peak_with_fragments_bytes=66 * GIB,
    peak_at=Moment(2, "aten.mm", "layers.13.mlp", "backward"),
    at_peak_bytes=RoleBytes(weights=14 * GIB, optimizer=28 * GIB, activations=16 * GIB, temporary=2 * GIB),
    build_time_us={"model": 1_500_000, "model.layers.0": 900},
    unknown_values=(UnknownValue("train.py:41", "float(loss)", 1.0, 3),),
    at_peak_by_module=tuple(
        [ModuleShare(f"layers.{i}.mlp", "activations", 4 * GIB) for i in range(4)]
        + [ModuleShare(f"layers.{i}.mlp", "weights", 3 * GIB) for i in range(4)]
        + [ModuleShare("embed", "weights", 2 * GIB), ModuleShare("", "temporary", 2 * GIB)]
    ),
    largest_at_peak=(
        LiveTensors(
            "", "aten.mm", "layers.0-3.mlp", "activations", (4096, 8), "bfloat16", "m.py:7", 4, 16 * GIB
        ),
        LiveTensors("", "aten.exp", "", "temporary", None, "", "train.py:88", 1, 2 * GIB),
    ),
    timeline=timeline(),
)
LARGE = replace(
    FITTING,
    status="oom",
    fits=False,
    peak_bytes=90 * GIB,
    peak_with_fragments_bytes=96 * GIB,
    at_peak_bytes=RoleBytes(weights=14 * GIB, gradients=14 * GIB, activations=60 * GIB, temporary=2 * GIB),
    out_of_memory=OutOfMemory(Moment(1, "aten.mm", "layers.3.mlp", "forward"), 77, 2 * GIB, "no room"),
)


def run_of(*ranks, device=A100, world_size=None):
    return RunResult("0.1.0", 1, world_size or len(ranks), device, "cuda", ranks)
