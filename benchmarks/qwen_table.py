"""Qwen2.5-7B, TP 2 x PP 2, sequence 10,240: our dry run next to a published real run and MindSpore's dry run.

    examples/megatron/qwen25_7b.sh ──> windtunnel run, ranks 0 and 2 (one per stage) ──> table, and what is live

Run as `make qwen`. The figures of the real run and of MindSpore's dry run are those of a public tutorial, for stage 0;
the arithmetic is the model's shapes times bytes, for a tensor-by-tensor comparison. Nothing is fitted to either.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from windtunnel.events.file import read_recording
from windtunnel.memory.attribution import LiveTensors, largest_tensors
from windtunnel.memory.lifetime import ALIVE, lifetimes_of

__all__ = ["PUBLISHED", "RankPeak", "alive_at_peak", "main", "run_job", "terms_of"]

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "megatron" / "qwen25_7b.sh"
DEVICE = "ascend-910b-64gb"
MIB = 1 << 20

# (recompute, stage) -> MiB used and with fragments: of the real run, of MindSpore's dry run
PUBLISHED = {(False, 0): ((55405, 57400), (55389, 57341)), (True, 0): ((35073, 36174), (34946, 35720))}


@dataclass(frozen=True)
class RankPeak:
    """One simulated rank."""

    rank: int
    peak_mib: float
    with_fragments_mib: float
    at: str
    alive: tuple[LiveTensors, ...]


def run_job(recompute: bool, n_samples: int = 64) -> tuple[list[RankPeak], float]:
    """Simulate the published job; the peaks of ranks 0 and 2, and the CPU seconds it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as out:
        launch = (
            f"{sys.executable} -W ignore -m windtunnel.commands.main run --device {DEVICE} --world-size 4 --ranks 0,2"
            f" --out {out} --force"
        )
        settings = {"LAUNCH": launch, "RECOMPUTE": str(int(recompute)), "GLOBAL_BATCH": str(n_samples)}
        done = subprocess.run(
            ["sh", str(SCRIPT)], env=os.environ | settings, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 4):
            raise SystemExit(done.stdout + done.stderr)
        ranks = json.loads((Path(out) / "report.json").read_text(encoding="utf-8"))["ranks"]
        peaks = [_peak(rank, Path(out)) for rank in ranks if rank["rank"] in (0, 2)]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return peaks, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _peak(rank: dict, out: Path) -> RankPeak:
    where = rank["peak_at"]
    return RankPeak(
        rank["rank"],
        rank["peak_bytes"] / MIB,
        rank["peak_with_fragments_bytes"] / MIB,
        f"step {where['step']}, {where['op'] or where['module']}",
        alive_at_peak(out / f"rank{rank['rank']}"),
    )


def alive_at_peak(folder: Path) -> tuple[LiveTensors, ...]:
    """Everything live when live bytes were highest, equal tensors grouped."""
    recording = read_recording(next(folder.glob("recording.*")))
    lives = lifetimes_of(recording)
    deaths = np.where(lives.death == ALIVE, len(recording), lives.death)
    rows = np.concatenate([lives.birth, deaths])
    change = np.concatenate([lives.n_bytes, -lives.n_bytes])[np.argsort(rows, kind="stable")]
    peak = np.sort(rows, kind="stable")[np.argmax(np.cumsum(change))]
    alive = ((lives.birth <= peak) & (deaths > peak)).nonzero()[0]
    return largest_tensors(recording, lives, alive, lives.n_bytes[alive], top=1000)


# -- the arithmetic -----------------------------------------------------------------------------------------

WEIGHTS, GRADIENTS, MASTERS, MOMENTS = (
    "weights, bf16",
    "gradient buffer, fp32",
    "master weights, fp32",
    "Adam, fp32",
)
GATHERED, CONSTANTS = "buffer of the sequence all-gather", "causal mask, rotary frequencies"
NORMS, ROTATED = "inputs of layers and norms, outputs of norms", "rotated query and key, value"
ATTENTION, SOFTMAX, COS_SIN = "attention output", "softmax max and sum", "cos and sin of every call"
FC1, SWIGLU, BACKWARD = "fc1 output", "SwiGLU output", "SwiGLU's backward: dY, its two gradients"
LOGITS, WIDE_LOGITS, BEFORE = "logits, bf16", "logits, fp32", "gradient sent for the previous micro-batch"
OTHER = "small tensors"
EXPLAINED = {
    NORMS: "the schedule's variable still holds what the previous micro-batch received",
    BEFORE: "the schedule's variable still holds what the previous micro-batch sent back",
}

S, H, FFN, HEADS, GROUPS, D, VOCAB, LAYERS, TP = 10240, 3584, 18944, 28, 4, 128, 152064, 14, 2


def terms_of(stage: int, recompute: bool) -> dict[str, float]:
    """MiB of each kind of tensor at the peak of one stage, from shapes alone; bf16 is 2 bytes, fp32 is 4."""
    qkv = (HEADS + 2 * GROUPS) * D
    layer = (H * qkv + qkv + H * H + 3 * H * FFN) / TP + 2 * H
    parameters = LAYERS * layer + VOCAB // TP * H + (H if stage else 0)
    shard = S * H * 2 / TP / MIB  # one activation, split by sequence
    half_heads, head = S * D * 2 / TP / MIB, S * D / MIB
    n_flying = 1 if stage else 2  # micro-batches between forward and backward
    if recompute:
        n_whole, n_inputs = (0, LAYERS + 1) if stage else (1, LAYERS * n_flying)
    else:
        n_whole, n_inputs = LAYERS * n_flying, 1 if stage else 0
    n_activated = n_whole if stage else n_whole - 1  # the SwiGLU that runs backward has freed its output
    return {
        WEIGHTS: parameters * 2 / MIB,
        GRADIENTS: parameters * 4 / MIB,
        MASTERS: parameters * 4 / MIB,
        MOMENTS: parameters * 8 / MIB,
        GATHERED: S * H * 2 / MIB,
        CONSTANTS: 4 + head * 4,
        # with recomputation, the norm input of a recomputed layer is the layer's own input
        NORMS: (n_inputs + n_whole * 4) * shard + (shard if stage else 0),
        ROTATED: n_whole * (HEADS + 2 * GROUPS) * half_heads,
        ATTENTION: n_whole * HEADS * half_heads,
        SOFTMAX: n_whole * 2 * HEADS // TP * S * 8 * 4 / MIB,
        COS_SIN: n_whole * 4 * head * 2,
        FC1: n_whole * 2 * FFN * S * 2 / TP / MIB,
        SWIGLU: n_activated * FFN * S * 2 / TP / MIB,
        BACKWARD: 0.0 if stage else shard + 3 * FFN * S * 2 / TP / MIB,
        LOGITS: S * VOCAB * 2 / TP / MIB if stage else 0.0,
        WIDE_LOGITS: S * VOCAB * 4 / TP / MIB if stage else 0.0,
    }


# -- the tables ---------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--global-batch-size", type=int, default=64, metavar="N")
    options = parser.parse_args()
    console = Console()
    results: dict[tuple[bool, int], RankPeak] = {}
    for recompute in (False, True):
        peaks, seconds = run_job(recompute, options.global_batch_size)
        name = "full recomputation" if recompute else "no recomputation"
        console.print(f"{name}: ranks 0 and 2, 3 iterations, {seconds:.0f} s of CPU time")
        results |= {(recompute, peak.rank // 2): peak for peak in peaks}
    console.print(_table(results))
    for (recompute, stage), peak in results.items():
        console.print(_comparison(recompute, stage, peak))
    worst = max((peak.peak_mib, stage) for (recompute, stage), peak in results.items() if recompute)
    console.print(
        f"With recomputation the worst rank is in stage {worst[1]}: {worst[0]:,.0f} MiB. The published table has"
        " only stage 0."
    )


def _table(results: dict[tuple[bool, int], RankPeak]) -> Table:
    table = Table(title="Qwen2.5-7B on 4 Ascend devices, MiB: used / with fragments", box=None)
    for column in ("", "ours", "real run", "error", "MindSpore's dry run"):
        table.add_column(column, justify="left" if not column else "right")
    for (recompute, stage), peak in results.items():
        name = f"stage {stage}, {'full' if recompute else 'no'} recomputation"
        ours = f"{peak.peak_mib:,.0f} / {peak.with_fragments_mib:,.0f}"
        published = PUBLISHED.get((recompute, stage))
        if published is None:
            table.add_row(name, ours, "not published", "", "")
            continue
        real, dry = published
        errors = [
            100 * (a / b - 1) for a, b in zip((peak.peak_mib, peak.with_fragments_mib), real, strict=True)
        ]
        table.add_row(
            name,
            ours,
            f"{real[0]:,} / {real[1]:,}",
            f"{errors[0]:+.2f} % / {errors[1]:+.2f} %",
            f"{dry[0]:,} / {dry[1]:,}",
        )
    return table


def _comparison(recompute: bool, stage: int, peak: RankPeak) -> Table:
    """Each kind of tensor: counted in the recording, and by arithmetic."""
    title = f"stage {stage}, {'full' if recompute else 'no'} recomputation: peak at {peak.at}"
    table = Table(title=title, box=None)
    for column in ("alive at the peak", "recorded MiB", "arithmetic MiB", "difference", "why"):
        table.add_column(column, justify="left" if column in ("alive at the peak", "why") else "right")
    recorded = _recorded_terms(peak.alive)
    expected = terms_of(stage, recompute)
    for name in [*expected, *(n for n in recorded if n not in expected)]:
        ours, theirs = recorded.get(name, 0.0), expected.get(name, 0.0)
        if max(ours, theirs) >= 0.5:
            why = EXPLAINED.get(name, "") if abs(ours - theirs) > 20 else ""
            table.add_row(name, f"{ours:,.2f}", f"{theirs:,.2f}", f"{ours - theirs:+,.2f}", why)
    table.add_row("together", f"{sum(recorded.values()):,.1f}", f"{sum(expected.values()):,.1f}", "")
    return table


def _recorded_terms(alive: tuple[LiveTensors, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for tensors in alive:
        name = _kind(tensors)
        found[name] = found.get(name, 0.0) + tensors.n_bytes / MIB
    return found


def _kind(tensors: LiveTensors) -> str:
    """Which of the terms these tensors are."""
    module, op = tensors.module.rpartition(".")[2], tensors.op.partition(".")[2]
    if tensors.where.startswith("param_and_grad_buffer"):
        return GRADIENTS
    if tensors.role in ("weights", "optimizer"):
        if tensors.module:
            return WEIGHTS
        return MOMENTS if op == "zeros_like" else MASTERS
    if tensors.role == "communication":
        return GATHERED
    for kind, is_it in _SIGNS:
        if is_it(op, module, tensors):
            return kind
    return OTHER


_SIGNS = (
    (CONSTANTS, lambda op, module, t: op in ("triu", "cat", "ones")),
    (SWIGLU, lambda op, module, t: op == "npu_swiglu"),
    (FC1, lambda op, module, t: op == "mm" and module == "linear_fc1"),
    (LOGITS, lambda op, module, t: op == "mm" and module == "output_layer"),
    (WIDE_LOGITS, lambda op, module, t: t.where.startswith("cross_entropy") and t.n_bytes > 1 << 30),
    (BACKWARD, lambda op, module, t: op == "npu_swiglu_backward" or (op == "mm" and module == "linear_fc2")),
    (BACKWARD, lambda op, module, t: t.where.startswith("p2p_communication.py") and t.count == 1),
    (SOFTMAX, lambda op, module, t: op == "npu_fusion_attention" and t.shape[-1] == 8),
    (ATTENTION, lambda op, module, t: op == "npu_fusion_attention"),
    (COS_SIN, lambda op, module, t: module == "self_attention" and not op),
    (ROTATED, lambda op, module, t: "rotary" in op or module == "core_attention"),
    (BEFORE, lambda op, module, t: op == "npu_rms_norm_backward" or (op == "add" and "layernorm" in module)),
    (NORMS, lambda op, module, t: op in ("npu_rms_norm", "add", "clone") or t.where.startswith("p2p_")),
)


if __name__ == "__main__":
    main()
