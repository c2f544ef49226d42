"""How the cost of a dry run grows with the size of the job.

a 70 B model, TP 8 x PP 8, on 1,024 and 16,384 devices ──> ranks simulated, time
fully_shard of a 7 B model on 8 and 1,024 devices      ──> CPU time, next to torch's own fake tensors and fake group
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from windtunnel.report.json.run import read_report

__all__ = ["main"]

_HERE = Path(__file__).parent
_JOB = _HERE.parent / "examples" / "megatron" / "llama_70b.sh"
_SHARD = _HERE / "fsdp_shard.py"


def main() -> None:
    print("\nA 70 B model on Megatron-core, TP 8 x PP 8, 32 micro-batches, 3 steps; every rank reported\n")
    print(
        f"{'cards':>8} {'simulated':>10} {'wall s':>8} {'CPU s':>8} {'CPU s per rank':>13} {'tightest GiB':>13}"
    )
    for n_cards in (1024, 16384):
        _print_world(n_cards)
    print("\nfully_shard of Qwen2.5-7B, CPU seconds\n")
    print(f"{'cards':>8} {'windtunnel':>11} {'FakeTensorMode':>15} {'ratio':>6}")
    for n_cards in (8, 1024):
        ours, theirs = _shard_seconds(n_cards, is_ours=True), _shard_seconds(n_cards, is_ours=False)
        print(f"{n_cards:>8,} {ours:>11.1f} {theirs:>15.1f} {theirs / ours:>6.1f}")


def _print_world(n_cards: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        launch = (
            f"{sys.executable} -m windtunnel.commands.main run --device h100-80gb --world-size {n_cards}"
            f" --out {folder}/out"
        )
        started, cpu = time.monotonic(), _cpu_seconds()
        done = subprocess.run(
            ["sh", str(_JOB)],
            env={**os.environ, "CARDS": str(n_cards), "LAUNCH": launch},
            capture_output=True,
            text=True,
        )
        wall, cpu = time.monotonic() - started, _cpu_seconds() - cpu
        if done.returncode:
            print(done.stdout[-2000:])
            raise SystemExit(f"the job on {n_cards} devices ended with exit code {done.returncode}")
        ranks = read_report(Path(folder, "out", "report.json")).ranks
    assert len(ranks) == n_cards
    n_simulated = sum(rank.status != "same_as" for rank in ranks)
    tightest = max(rank.peak_with_fragments_bytes for rank in ranks) / 2**30
    print(
        f"{n_cards:>8,} {n_simulated:>10} {wall:>8.0f} {cpu:>8.0f} {cpu / n_simulated:>13.1f} {tightest:>13.1f}"
    )


def _shard_seconds(n_cards: int, *, is_ours: bool) -> float:
    """CPU seconds that fully_shard took, as the script prints them."""
    ours = [
        sys.executable,
        "-m",
        "windtunnel.commands.main",
        "run",
        "--world-size",
        str(n_cards),
        "--rank",
        "0",
    ]
    with tempfile.TemporaryDirectory() as folder:
        command = [*ours, "--out", f"{folder}/out", str(_SHARD)]
        if not is_ours:
            command = [sys.executable, str(_SHARD), "--fake-ranks", str(n_cards)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("fully_shard"))
    return float(line.split()[1])


def _cpu_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


if __name__ == "__main__":
    main()
