"""Bubbles of real pipeline schedules compared with their closed-form values.

schedules of torch and of Megatron-core, as they run ──> only some operators take time, one second each ──> step, closed form

Stages are equal, nothing else takes time: the time of a step beyond its work is bubble. p ranks, m micro-batches, v
chunks on each rank; a chunk takes f for forward and b + w for backward.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windtunnel.cluster.program_builder import Durations, program_of
from windtunnel.cluster.timeline import WorldTimeline, replay_world
from windtunnel.events.file import read_recording
from windtunnel.events.model import Kind, Recording

__all__ = ["main"]

_HERE = Path(__file__).parent
_TORCH = _HERE / "pipeline_programs" / "torch_schedule.py"
_MEGATRON = _HERE.parent / "examples" / "megatron" / "pretrain_gpt.py"
_P = 4


@dataclass(frozen=True)
class _Case:
    name: str
    command: tuple[str, ...]
    seconds: Callable[[str], float]  # of an operator
    m: int
    v: int
    bubble: float  # the closed form, with f = b = w = 1


def main() -> None:
    print(f"\nStep of {_P} equal stages: real schedules vs. the closed form, f = b = w = 1\n")
    print(
        f"{'schedule':<44} {'m':>3} {'v':>2} {'step':>7} {'closed form':>12} {'difference':>11} {'bubble':>7}"
    )
    for case in _cases():
        found, expected = _step(case), case.m * case.v * 3 + case.bubble
        print(
            f"{case.name:<44} {case.m:>3} {case.v:>2} {found:>7.2f} {expected:>12.2f} {found / expected - 1:>10.2%}"
            f" {found / (case.m * case.v * 3) - 1:>7.1%}",
            flush=True,
        )


def _cases() -> list[_Case]:
    whole, zero = (_P - 1) * 3.0, (_P - 1) * 1.0  # (p - 1)(f + b + w) and (p - 1)(f + b - w)
    return [
        _torch("GPipe", 8, 1, whole),
        _torch("1F1B", 8, 1, whole),
        _torch("1F1B", 16, 1, whole),
        _torch("Interleaved1F1B", 8, 2, whole),
        _torch("Interleaved1F1B", 12, 3, whole),
        _torch("InterleavedZeroBubble", 8, 2, zero),
        _torch("InterleavedZeroBubble", 12, 3, zero),
        _torch("ZBVZeroBubble", 8, 2, zero),
        _torch("ZBVZeroBubble", 8, 2, 0.0, clip=False),
        _megatron(8, 1, whole),
        _megatron(8, 2, whole),
    ]


def _torch(schedule: str, m: int, v: int, bubble: float, *, clip: bool = True) -> _Case:
    """A step ends for all ranks at once, because of the gradient norm; without it, ranks continue into the next step."""
    options = ["--schedule", schedule, "--micro-batches", str(m), "--chunks", str(v), "--steps", "4"]
    options += ["--clip"] if clip else []
    name = f"torch {schedule}" + ("" if clip else ", steps not synchronised")
    return _Case(name, (str(_TORCH), *options), lambda op: float(op.startswith("aten.mm")), m, v, bubble)


def _megatron(m: int, v: int, bubble: float) -> _Case:
    """One layer per chunk. Only attention takes time, so that embedding and loss cost the outer stages nothing."""
    sizes = {
        "pipeline-model-parallel-size": _P, "num-layers": _P * v, "hidden-size": 128, "ffn-hidden-size": 256,
        "num-attention-heads": 4, "seq-length": 64, "max-position-embeddings": 64, "padded-vocab-size": 512,
        "make-vocab-size-divisible-by": 1, "micro-batch-size": 1, "global-batch-size": m, "train-iters": 3, "lr": 1e-4,
        "attention-dropout": 0.0, "hidden-dropout": 0.0,
    }  # fmt: skip
    if v > 1:
        sizes["num-layers-per-virtual-pipeline-stage"] = 1
    options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    flags = ["--use-mcore-models", "--bf16", "--use-flash-attn", "--untie-embeddings-and-output-weights"]
    name = "Megatron-core " + ("1F1B" if v == 1 else "interleaved 1F1B")
    return _Case(name, (str(_MEGATRON), *flags, *options), _attention_seconds, m, v, bubble)


def _attention_seconds(op: str) -> float:
    if "attention" not in op:
        return 0.0
    return 2.0 if "backward" in op else 1.0


def _step(case: _Case) -> float:
    """The last step, the same on all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        run = [sys.executable, "-m", "windtunnel.commands.main", "run", "--device", "a100-80gb"]
        run += ["--world-size", str(_P), "--ranks", "all", "--out", str(out)]
        done = subprocess.run([*run, *case.command], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{case.name} ended with exit code {done.returncode}:\n{done.stdout[-2000:]}")
        world = _replay({r: read_recording(out / f"rank{r}" / "recording.arrows") for r in range(_P)}, case)
    if world.n_unmet or world.n_alone:
        raise SystemExit(f"{case.name}: {world.n_unmet + world.n_alone} mismatched calls")
    return max(float(np.diff(rank.step_ends)[-1]) for rank in world.ranks.values())


def _replay(recordings: dict[int, Recording], case: _Case) -> WorldTimeline:
    programs = {}
    for rank, recording in recordings.items():
        of_signature = np.array([case.seconds(s.name) for s in recording.signatures] or [0.0])
        is_op = recording.columns["kind"] == Kind.OP
        seconds = np.where(is_op, of_signature[recording.columns["value"] * is_op], 0.0)
        programs[rank] = program_of(recording, rank, Durations(seconds, np.zeros(len(seconds)), {}))
    return replay_world(programs, {rank: rank for rank in programs}, len(programs))


if __name__ == "__main__":
    main()
