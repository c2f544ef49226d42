"""Overhead of rematerialisation on the DTR authors' own op logs: ours beside the published, and what a plan gains.

    ../shared/data/dtr/logs.zip ──> replay with each policy ──> beside the table in ../shared/facts/dtr.md
                                └─> plan ──────────────────> beside the best policy of that table

Run as `python -m benchmarks.dtr.logs [--only MODEL]`. Overhead is total compute through compute of the program alone;
the budget is a share of the program's own peak. Nothing is fitted. The exit code is 1 if a cell of the first table
differs by more than 2 % at a budget of 0.4 or more or ends otherwise, or if a plan is worse than the best published
policy at 0.3 or more.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.dtr.reference.foresight import plan
from benchmarks.dtr.reference.log_replay import Outcome, RecordedStep, Replay, recorded_step, replay
from benchmarks.dtr.reference.op_log import OpLog, op_logs_in, read_op_log
from windtunnel.remat.policy import policy_named

__all__ = ["LOGS", "Row", "best_published", "cell", "planned", "published", "replayed"]

_SHARED = Path(__file__).parents[3] / "shared"
LOGS = _SHARED / "data" / "dtr" / "logs.zip"
_FACTS = _SHARED / "facts" / "dtr.md"

_POLICIES = {"eq": "dtr", "local": "local", "LRU": "lru", "size": "largest", "MSPS": "msps"}
_MEMBERS = {
    "ResNet-32": "/resnet32-",
    "DenseNet-121": "densenet121-",
    "InceptionV4": "/inceptionv4-",
    "Transformer": "/transformer-",
    "U-Net": "/unet-",
    "TreeLSTM": "/treelstm-",
    "LSTM": "/lstm-",
    "Unrolled GAN": "/unroll_gan-",
}
_RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
_SAME_FROM, _LARGEST_DIFFERENCE = 0.4, 0.02
_BEST_FROM = 0.3
_ROUNDING = 0.0005  # the published figures have three decimals

_WORDS = {Outcome.OUT_OF_MEMORY: "OOM", Outcome.THRASHING: "thrash"}


@dataclass(frozen=True)
class Row:
    """One line of the published table."""

    model: str
    policy: str  # our name of it
    cells: dict[float, str]  # budget as a share of the peak -> overhead, OOM or thrash


@cache
def published() -> tuple[Row, ...]:
    """Read the table of section 2.5: a row without a model continues the one above it."""
    section = _FACTS.read_text(encoding="utf-8").split("### 2.5")[1].split("\n## ")[0]
    table = [
        [field.strip() for field in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    ratios = [float(field) for field in table[0][2:]]
    rows: list[Row] = []
    for model, heuristic, *fields in table[2:]:
        name = re.sub(r" *\(.*", "", model) or rows[-1].model
        cells = {ratio: field for ratio, field in zip(ratios, fields, strict=False) if field}
        rows.append(Row(name, _POLICIES[heuristic], cells))
    return tuple(rows)


def best_published(model: str, ratio: float) -> float:
    """The least overhead of any published policy, infinite where each failed."""
    cells = (row.cells.get(ratio, "") for row in published() if row.model == model)
    return min((float(text) + _ROUNDING for text in cells if text[:1].isdigit()), default=float("inf"))


def replayed(model: str, policy: str, ratio: float) -> Replay:
    log, step = _log_of(model)
    return replay(log, int(step.peak_bytes * ratio), policy_named(policy))


def planned(model: str, ratio: float) -> Replay:
    log, step = _log_of(model)
    return plan(log, int(step.peak_bytes * ratio)).replay


def cell(done: Replay) -> str:
    return _WORDS.get(done.outcome) or f"{done.overhead:.3f}"


@cache
def _log_of(model: str) -> tuple[OpLog, RecordedStep]:
    (member,) = (name for name in op_logs_in(LOGS) if _MEMBERS[model] in name)
    log = read_op_log(LOGS, member)
    return log, recorded_step(log)


def _print_policies(only: str) -> list[str]:
    """The published table, ours below each row; return what is outside the limits."""
    wrong, worst = [], 0.0
    print(f"{'overhead at':14} {'':9}", *(f"{ratio:>7}" for ratio in published()[0].cells))
    for row in published():
        if only not in row.model:
            continue
        print(f"{row.model:14} {'published':9}", *(f"{text:>7}" for text in row.cells.values()))
        ours, differences = [], []
        for ratio, said in row.cells.items():
            ours.append(cell(replayed(row.model, row.policy, ratio)))
            difference = _difference(ours[-1], said)
            differences.append("" if difference is None else f"{100 * difference:+.1f}%")
            worst = max(worst, abs(difference or 0.0))
            is_close = ratio < _SAME_FROM or abs(difference or 0.0) <= _LARGEST_DIFFERENCE
            if not (is_close if difference is not None else ours[-1] == said):
                wrong.append(f"{row.model} {row.policy} {ratio}: {ours[-1]} instead of {said}")
        print(f"{row.policy:>14} {'ours':9}", *(f"{text:>7}" for text in ours))
        print(f"{'':14} {'':9}", *(f"{text:>7}" for text in differences), flush=True)
    print(f"largest relative difference: {100 * worst:.2f} %\n")
    return wrong


def _difference(ours: str, said: str) -> float | None:
    if ours[:1].isdigit() and said[:1].isdigit():
        return float(ours) / float(said) - 1
    return None


def _print_plans(only: str) -> list[str]:
    wrong = []
    print(f"{'plan':14} {'':14}", *(f"{ratio:>7}" for ratio in _RATIOS))
    for model in _MEMBERS:
        if only not in model:
            continue
        started = time.perf_counter()
        best = [best_published(model, ratio) for ratio in _RATIOS]
        plans = [planned(model, ratio) for ratio in _RATIOS]
        texts = ["-" if limit == float("inf") else f"{limit - _ROUNDING:.3f}" for limit in best]
        print(f"{model:14} {'best published':14}", *(f"{text:>7}" for text in texts))
        seconds = (time.perf_counter() - started) / len(plans)
        print(
            f"{'':14} {'plan':14}",
            *(f"{cell(done):>7}" for done in plans),
            f"  {seconds:.1f} s each",
            flush=True,
        )
        for ratio, limit, done in zip(_RATIOS, best, plans, strict=True):
            is_better = done.outcome is Outcome.DONE and done.overhead <= limit
            if ratio >= _BEST_FROM and limit < float("inf") and not is_better:
                wrong.append(f"{model} plan {ratio}: {cell(done)}, published {limit - _ROUNDING:.3f}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a model's name")
    options = parser.parse_args()
    if not LOGS.exists():
        print(f"not run: there is no {LOGS}")
        return 1
    wrong = _print_policies(options.only) + _print_plans(options.only)
    print("\n".join(["", *wrong, f"{len(wrong)} cells outside the limits"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
