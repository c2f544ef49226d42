"""Predicted vs. published peak memory of Megatron-LM's own functional tests, on the last rank.

    golden values in ../shared/data/published ──> examples/megatron/pretrain_gpt.py, level 2 ──> table, median error

Run as `python -m benchmarks.published.megatron [--all] [--cards A100,H100] [--only NAME]`. Nothing is fitted: the arguments
are the published ones, the program is Megatron-core, workspaces are those of the built-in table. The tests train with Apex
and Transformer Engine; cases of the local spec come first, because only their layers are those of the example. For the
others its matrix products replace Transformer Engine's, which keep their own workspace (`_ENGINE`, an entry as a user
would write it).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Case", "Prediction", "arguments_of", "published_cases", "run_case", "summary"]

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "published" / "measurements.json.gz"
SCRIPT = ROOT / "examples" / "megatron" / "pretrain_gpt.py"
_DEVICES = {"DGX A100 80GB": "a100-80gb", "DGX H100 80GB": "h100-80gb", "GB200": "b200-180gb"}

_LONGEST_S = 600
_ENGINE = """
[transformer-engine-layers]
devices = ["cuda"]
operators = ["mm", "addmm", "bmm", "baddbmm"]
bytes = "33555456 if capability >= 90 else 4194304"
lifetime = "process"
accuracy = "exact"
source = "TransformerEngine pytorch/cpp_extensions/gemm.py; in its layers every product is one of these"
"""

# Megatron-core's router of the local layers uses that product too, where Transformer Engine is installed.
_ROUTER = """
[transformer-engine-router]
devices = ["cuda"]
operators = ["mm"]
when = "n == {n_experts}"
bytes = "33555456 if capability >= 90 else 4194304"
lifetime = "process"
accuracy = "exact"
source = "Megatron-core moe_utils.py, RouterGatingLinearFunction; TransformerEngine pytorch/cpp_extensions/gemm.py"
"""

# What each of these tests sets and the published list omits: it concerns the update, not the model.
_EVERY_TEST = [
    "--train-iters",
    "3",
    "--clip-grad",
    "1.0",
    "--weight-decay",
    "1e-2",
    "--log-num-zeros-in-grad",
]
# The same for some tests, by a part of their name; taken from the tests' own files at the published commit.
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
    "release": "its number of devices was not published",
    "defer_embedding": "a switch that is not in the published list keeps the output layer's inputs of all micro-batches",
    "frozen": "a test-only switch freezes part of its weights",
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
    def is_local(self) -> bool:
        return self.args.get("transformer-impl") == "local"

    @property
    def card(self) -> str:
        return self.hardware.removeprefix("DGX ").split()[0]


@dataclass(frozen=True)
class Prediction:
    """The dry run's result, or why there is none."""

    peak_bytes: int = 0
    workspace_bytes: int = 0  # of it, at the peak
    reason: str = ""


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


def run_case(case: Case) -> Prediction:
    """Simulate the last rank at level 2."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [
            sys.executable, "-W", "ignore", "-m", "windtunnel.commands.main", "run", "--level", "2", "--device",
            _DEVICES[case.hardware], "--world-size", str(case.world_size), "--rank", str(case.world_size - 1),
            "--out", str(out), "--force",
        ]  # fmt: skip
        n_experts = case.args.get("num-experts")
        if not case.is_local or n_experts:
            engine = Path(folder) / "engine.toml"
            text = _ROUTER.format(n_experts=n_experts) if case.is_local else _ENGINE
            engine.write_text(text, encoding="utf-8")
            command += ["--workspace", str(engine)]
        command += [str(SCRIPT), *arguments_of(case)]
        env = {key: value for key, value in os.environ.items() if key != "CUBLAS_WORKSPACE_CONFIG"}
        env |= {"CUBLAS_WORKSPACE_CONFIG": case.cublas} if case.cublas else {}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, env=env)
        except subprocess.TimeoutExpired:
            return Prediction(reason=f"not done after {_LONGEST_S} s")
        report = out / "report.json"
        if done.returncode not in (0, 4) or not report.exists():
            return Prediction(reason=_reason(done.stdout + done.stderr, out))
        rank = json.loads(report.read_text(encoding="utf-8"))["ranks"][-1]
        return Prediction(rank["peak_bytes"], rank["at_peak_bytes"]["workspace"])


def _difference(case: Case) -> str:
    """Why the example cannot run this test; empty if it can."""
    return next((why for part, why in _OTHER_PROGRAMS.items() if part in case.name), "")


def _reason(output: str, out: Path) -> str:
    """Why a run failed: the script's message about its arguments, or windtunnel's about the script."""
    logs = [path.read_text(encoding="utf-8", errors="replace") for path in out.glob("rank*/run.log")]
    refused = [line for log in logs for line in log.splitlines() if line.startswith(f"{SCRIPT.name}: ")]
    text = refused[-1] if refused else " ".join(output.partition("Failed: ")[2].partition("next:")[0].split())
    return text.rpartition(f"{SCRIPT.name}: ")[2][:120] or "unknown"


def summary(errors: dict[str, list[float]]) -> list[str]:
    """One line for each kind of row: how many, their median absolute error, how many are close."""
    lines = []
    for kind, values in errors.items():
        if values:
            sizes = sorted(map(abs, values))
            near = ", ".join(
                f"{sum(size <= limit for size in sizes)} within {limit} %" for limit in (1, 2, 5)
            )
            lines.append(
                f"{kind}: {len(sizes)} values, median absolute error {statistics.median(sizes):.2f} %, {near}"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--all", action="store_true", help="also the tests that used Transformer Engine's layers"
    )
    parser.add_argument("--only", default="", help="part of a test's name")
    parser.add_argument("--cards", default="A100,H100,GB200", help="which cards")
    options = parser.parse_args()
    cards = options.cards.split(",")
    chosen = [
        case
        for case in published_cases()
        if options.only in case.name and case.card in cards and (case.is_local or options.all)
    ]
    print(f"{'test':70} {'card':5} {'published':>12} {'level 2':>12} {'workspace':>11} {'error':>8}")
    known: dict[tuple[Any, ...], Prediction] = {}
    errors: dict[str, list[float]] = {"all": [], "local layers": [], "Transformer Engine's layers": []}
    errors |= {card: [] for card in cards}
    reasons: Counter[str] = Counter()
    for case in chosen:
        prediction = _predict(case, known)
        row = f"{case.name.removeprefix('gpt3_mcore_'):70} {case.card:5} {case.n_bytes / 2**20:8.1f} MiB"
        if prediction.reason:
            reasons[prediction.reason] += 1
            print(f"{row}  not run: {prediction.reason}", flush=True)
            continue
        error = 100 * (prediction.peak_bytes / case.n_bytes - 1)
        layers = "local layers" if case.is_local else "Transformer Engine's layers"
        for kind in ("all", layers, case.card):
            errors[kind].append(error)
        sizes = f"{prediction.peak_bytes / 2**20:8.1f} MiB {prediction.workspace_bytes / 2**20:7.1f} MiB {error:+7.2f}%"
        print(f"{row} {sizes}", flush=True)
    print()
    for line in summary(errors):
        print(line)
    for reason, count in reasons.most_common():
        print(f"not run, {count}: {reason}")


def _predict(case: Case, known: dict[tuple[Any, ...], Prediction]) -> Prediction:
    """Tests that differ only by container are run once."""
    if reason := _difference(case):
        return Prediction(reason=reason)
    key = (case.hardware, case.world_size, case.cublas, *arguments_of(case))
    if key not in known:
        known[key] = run_case(case)
    return known[key]


if __name__ == "__main__":
    main()
