"""Memory and time of one job with experts, under balanced, skewed and worst routing.

    examples/megatron/pretrain_gpt.py, 128 experts on 8 ranks, 8,192 tokens each ──> --routing … ──> one table

Run as `python -m benchmarks.routing [--experts 128] [--tokens 8192] [--ranks 8] [--device h100-80gb]`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.units import format_bytes

__all__ = ["Outcome", "arguments_of", "run_routing"]

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "megatron" / "pretrain_gpt.py"
ROUTINGS = ("balanced", "zipf:0.5", "zipf:1.2", "worst")
# Qwen3-30B-A3B's widths, four of its 48 layers.
_MODEL = """
--num-layers 4 --hidden-size 2048 --num-attention-heads 32 --group-query-attention --num-query-groups 4
--kv-channels 128 --ffn-hidden-size 6144 --moe-ffn-hidden-size 768 --moe-router-topk 8 --moe-aux-loss-coeff 1e-3
--moe-router-load-balancing-type aux_loss --moe-token-dispatcher-type alltoall --swiglu --normalization RMSNorm
--qk-layernorm --disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights
--padded-vocab-size 151936 --use-flash-attn --bf16 --use-distributed-optimizer --train-iters 2 --micro-batch-size 1
--attention-dropout 0.0 --hidden-dropout 0.0 --no-masked-softmax-fusion
""".split()


@dataclass(frozen=True)
class Outcome:
    """What one dry run reports."""

    fits: bool
    peak_bytes: int  # of the tightest rank, with fragments
    least_bytes: int  # of the emptiest one
    step_s: float
    seconds: float  # of the dry run itself


def arguments_of(n_experts: int, n_tokens: int, n_ranks: int) -> list[str]:
    sizes = {
        "--num-experts": n_experts, "--expert-model-parallel-size": n_ranks, "--seq-length": n_tokens,
        "--max-position-embeddings": n_tokens, "--global-batch-size": n_ranks,
    }  # fmt: skip
    return [*_MODEL, *(word for name, value in sizes.items() for word in (name, str(value)))]


def run_routing(routing: str, device: str, n_ranks: int, words: list[str]) -> Outcome:
    """Dry-run the job on its clock."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "windtunnel", "run", "--level", "3", "--device", device,
             "--world-size", str(n_ranks), "--routing", routing, "--no-advise", "--no-html", "--out", str(out),
             str(SCRIPT), *words],
            capture_output=True, text=True,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        if done.returncode not in (0, 4):
            raise SystemExit(
                f"the run with {routing} routing failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        report: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    peaks = [rank["peak_with_fragments_bytes"] for rank in report["ranks"]]
    return Outcome(done.returncode == 0, max(peaks), min(peaks), report["time"]["step_seconds"], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=8192, help="of each rank")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--device", default="h100-80gb")
    options = parser.parse_args()
    words = arguments_of(options.experts, options.tokens, options.ranks)
    print(
        f"{options.experts} experts on {options.ranks} ranks of {options.device}, {options.tokens:,} tokens each, top-8"
    )
    print(
        f"{'routing':10} {'fullest rank':>13} {'emptiest rank':>14} {'fits':>5} {'step':>10} {'dry run':>9}"
    )
    for routing in ROUTINGS:
        found = run_routing(routing, options.device, options.ranks, words)
        print(
            f"{routing:10} {format_bytes(found.peak_bytes):>13} {format_bytes(found.least_bytes):>14}"
            f" {'yes' if found.fits else 'no':>5} {1e3 * found.step_s:>7.0f} ms {found.seconds:>7.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
