"""Predicted against published peak memory of Megatron-LM's own functional tests, on the last rank.

    golden values in ../shared/data/published ──> examples/megatron/pretrain_gpt.py on a simulated card ──> table

Run as `python -m benchmarks.published_megatron [--all] [--only NAME]`. Nothing is fitted: the arguments are the
published ones, the program is Megatron-core. The tests train with Apex and Transformer Engine; cases of the local
spec come first, because only their layers are those of the example. Level 1 does not count workspaces. Those
of cuBLAS have the size the test's CUBLAS_WORKSPACE_CONFIG says, Transformer Engine keeps one of 4 MiB, from Hopper on
32 MiB: they are added in a column of their own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Case", "arguments_of", "published_cases", "run_case"]

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data" / "published" / "measurements.json.gz"
SCRIPT = ROOT / "examples" / "megatron" / "pretrain_gpt.py"
_DEVICES = {"DGX A100 80GB": "a100-80gb", "DGX H100 80GB": "h100-80gb", "GB200": "b200-180gb"}

_LONGEST_S = 180

# What every one of these tests sets and the published list leaves out: it concerns the update, not the model.
_EVERY_TEST = [
    "--train-iters",
    "3",
    "--clip-grad",
    "1.0",
    "--weight-decay",
    "1e-2",
    "--log-num-zeros-in-grad",
]
# The same for some tests, by a part of their name; read in the tests' own files at the published commit.
_SOME_TESTS = {
    "uninstall_te": ["--no-masked-softmax-fusion", "--no-persist-layer-norm"],
    "per_token_loss": ["--calculate-per-token-loss"],
    "interleaved_no_fusion": ["--rotary-interleaved"],
    "qk_layernorm": ["--qk-layernorm"],
    "no_create_attention_mask": ["--no-create-attention-mask-in-dataloader"],
    "15b_8t": ["--squared-relu", "--apply-layernorm-1p", "--rotary-percent", "0.5", "--attention-dropout", "0.0",
               "--hidden-dropout", "0.0", "--padded-vocab-size", "256000"],
}  # fmt: skip


_OTHER_PROGRAMS = {
    "release": "its number of cards was not published",
    "defer_embedding": "a switch that is not in the published list keeps the output layer's inputs of all micro-batches",
    "frozen": "a switch of the tests freezes part of its weights",
}


@dataclass(frozen=True)
class Case:
    """One published measurement."""

    name: str
    hardware: str
    container: str
    n_bytes: int
    world_size: int
    args: dict[str, Any]
    cublas: str  # CUBLAS_WORKSPACE_CONFIG of the test

    @property
    def workspace_bytes(self) -> int:
        """What cuBLAS keeps, once for the thread of forward and once for that of backward, and Transformer Engine."""
        is_a100 = "A100" in self.hardware
        if self.cublas:
            numbers = [int(n) for n in self.cublas.strip(":").split(":")]
            each = sum((size << 10) * count for size, count in zip(numbers[::2], numbers[1::2], strict=True))
        else:
            each = 8320 << 10 if is_a100 else 32 << 20  # torch's defaults
        engine = 0 if self.is_local else 4 << 20 if is_a100 else 32 << 20
        return 2 * each + engine

    @property
    def is_local(self) -> bool:
        return self.args.get("transformer-impl") == "local"


def published_cases() -> Iterator[Case]:
    """The GPT tests whose peak was published, local layers first."""
    rows = json.loads(gzip.decompress(DATA.read_bytes()))
    found = [
        Case(
            row["model"],
            row["hardware"],
            "lts" if "lts" in row["config"]["framework"] else "dev",
            int(row["value"]),
            (row["config"]["nodes"] or 1) * (row["config"]["gpus_per_node"] or 8),
            row["config"]["args"],
            row["config"]["env"].get("CUBLAS_WORKSPACE_CONFIG", ""),
        )
        for row in rows
        if row["source"] == "Megatron-LM CI golden"
        and row["metric"] == "peak_allocated_memory"
        and row["config"]["test_case"].startswith(("gpt/", "moe/"))
        and row["quality"] in "AB"
    ]
    yield from sorted(found, key=lambda case: (not case.is_local, case.name, case.hardware, case.container))


def arguments_of(case: Case) -> list[str]:
    words = list(_EVERY_TEST)
    for name, value in case.args.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False:
            words += [f"--{name}", str(value)]
    if case.is_local:
        words.append("--apply-query-key-layer-scaling")
    for part, more in _SOME_TESTS.items():
        if part in case.name:
            words += more
    return words


def run_case(case: Case) -> tuple[int | None, str]:
    """Predicted peak of the last rank in bytes, or None and the reason."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable, "-W", "ignore", "-m", "windtunnel.commands.main", "run", "--device", _DEVICES[case.hardware],
            "--world-size", str(case.world_size), "--rank", str(case.world_size - 1), "--out", out, "--force",
            str(SCRIPT), *arguments_of(case),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            return None, f"not done after {_LONGEST_S} s"
        report = Path(out) / "report.json"
        if done.returncode not in (0, 4) or not report.exists():
            return None, _reason(done.stdout + done.stderr)
        rank = json.loads(report.read_text(encoding="utf-8"))["ranks"][-1]
        return rank["peak_bytes"], ""


def _difference(case: Case) -> str:
    """Why this test is not the program that the example runs, if it is not."""
    return next((why for part, why in _OTHER_PROGRAMS.items() if part in case.name), "")


def _reason(output: str) -> str:
    text = " ".join(output.partition("Failed: ")[2].partition("next:")[0].split())
    return text.rpartition("pretrain_gpt.py: ")[2][:120] or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--all", action="store_true", help="also the tests that used Transformer Engine's layers"
    )
    parser.add_argument("--only", default="", help="part of a test's name")
    options = parser.parse_args()
    known: dict[tuple[Any, ...], tuple[int | None, str]] = {}
    print(f"{'test':70} {'card':5} {'published':>12} {'level 1':>12} {'+ workspace':>12} {'error':>8}")
    for case in published_cases():
        if options.only not in case.name or not (case.is_local or options.all):
            continue
        if reason := _difference(case):
            print(f"{case.name:70} not run: {reason}")
            continue
        key = (case.hardware, case.world_size, *arguments_of(case))
        if key not in known:
            known[key] = run_case(case)
        predicted, reason = known[key]
        card = case.hardware.removeprefix("DGX ").split()[0]
        row = f"{case.name.removeprefix('gpt3_mcore_'):70} {card:5} {case.n_bytes / 2**20:8.1f} MiB"
        if predicted is None:
            print(f"{row}  not run: {reason}")
        else:
            total = predicted + case.workspace_bytes
            error = 100 * (total / case.n_bytes - 1)
            print(f"{row} {predicted / 2**20:8.1f} MiB {total / 2**20:8.1f} MiB {error:+7.2f}%", flush=True)


if __name__ == "__main__":
    main()
