"""Published step times as runs that can be repeated here, and which of them were used to calibrate the roofline.

    ../shared/data/published ──> vTrain, Korthikanti (examples/megatron), llm-foundry, torchtitan (runs.py) ──> TimeRow

A row's configuration alone decides whether it is for calibration or for the report: half of llm-foundry's rows and half
of vTrain's rows without a pipeline, chosen by a checksum, are for calibration. Pipelines, torchtitan, nanoGPT, torchtune
and Korthikanti are never used for calibration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.published.megatron import Case, arguments_of
from benchmarks.published.row import DATA, ROOT, Row, published_rows
from benchmarks.published.runs import published_runs

__all__ = ["TimeRow", "limited", "time_rows"]

SCRIPT = str(ROOT / "examples" / "megatron" / "pretrain_gpt.py")
_VTRAIN_NETWORK = "nics=4,bandwidth=25GB/s"  # "inter_node_bandwidth": 800 Gbit/s in its configurations
_TIMED = ("step_time_s", "tokens_per_s_per_gpu")
_TEST_CARDS = {"DGX A100 80GB": "a100-80gb", "DGX H100 80GB": "h100-80gb"}
_GPT_VOCABULARY = 51200  # GPT-2's, padded as Megatron pads it for 8-way tensor parallelism


@dataclass(frozen=True)
class TimeRow:
    """One published step time, and the run that predicts it."""

    name: str
    source: str
    device: str
    world_size: int
    network: str | None
    command: tuple[str, ...]
    ranks: str
    seconds: float  # as published
    n_micro_batches: int
    is_calibration: bool

    @property
    def key(self) -> str:
        """Checksum of the configuration: rows that differ only in the date of measurement have the same."""
        words = (self.device, str(self.world_size), *self.command)
        text = " ".join(word.removeprefix(str(ROOT)) for word in words)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def time_rows(data: Path = DATA) -> Iterator[TimeRow]:
    """Every published step time that a program here repeats."""
    rows = list(published_rows(data))
    for row in rows:
        if row.metric == "iteration_time" and row.source.startswith("vTrain"):
            found = _vtrain(row)
            yield _marked(found) if " pp1 " in found.name else found
        elif row.metric == "iteration_time" and row.source.startswith("Korthikanti"):
            yield _korthikanti(row)
        elif row.metric == "iteration_time_median" and _is_local_test(row):
            yield _functional_test(row)
    for run in published_runs(rows):
        if run.metric in _TIMED:
            is_seconds = run.metric == "step_time_s"
            row = TimeRow(
                run.id, run.source, run.device, run.world_size, run.network, run.command, run.ranks,
                run.value if is_seconds else run.tokens_per_step_per_gpu / run.value,
                _accumulated(run.command, run.world_size), False,
            )  # fmt: skip
            yield _marked(row) if run.source.startswith("MosaicML") else row


def limited(row: TimeRow, most: int) -> tuple[tuple[str, ...], int]:
    """The command with at most this many micro-batches in a step, and how many it then has: for a quick recording."""
    if row.n_micro_batches <= most:
        return row.command, row.n_micro_batches
    words = list(row.command)
    at = next(i for i, word in enumerate(words) if word.startswith("--global-batch")) + 1
    words[at] = str(int(words[at]) // row.n_micro_batches * most)
    return tuple(words), most


def _marked(row: TimeRow) -> TimeRow:
    return replace(row, is_calibration=int(row.key[0], 16) % 2 == 0)


def _megatron(sizes: dict[str, int], flags: tuple[str, ...]) -> tuple[str, ...]:
    """Megatron-LM's GPT of 2022: half precision, learned positions, its own fused kernels."""
    words = [SCRIPT, "--fp16", "--train-iters", "2", "--padded-vocab-size", str(_GPT_VOCABULARY)]
    for name, value in sizes.items():
        words += [f"--{name}", str(value)]
    return (*words, *flags)


_FULL = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")


def _vtrain(row: Row) -> TimeRow:
    """Measured with Megatron-DeepSpeed, every layer recomputed in backward."""
    config = {name: int(value) for name, value in row.config.items() if isinstance(value, float)}
    tensor, data, stages = (config[f"{axis} parallelism"] for axis in ("tensor", "data", "pipeline"))
    micro, whole = config["micro batch"], config["global batch"]
    sizes = {
        "num-layers": config["# layers"], "hidden-size": config["hidden size"],
        "num-attention-heads": config["attention heads"], "seq-length": config["sequence length"],
        "tensor-model-parallel-size": tensor, "pipeline-model-parallel-size": stages,
        "micro-batch-size": micro, "global-batch-size": whole,
    }  # fmt: skip
    name = (
        f"h{config['hidden size']} L{config['# layers']} tp{tensor} dp{data} pp{stages} mb{micro} gb{whole}"
    )
    return TimeRow(
        name, "vTrain, one node" if config["# GPUs"] <= 8 else "vTrain, many nodes", "a100-80gb", config["# GPUs"],
        _VTRAIN_NETWORK, _megatron(sizes, _FULL), "auto", row.value / 1000, whole // data // micro, False,
    )  # fmt: skip


def _korthikanti(row: Row) -> TimeRow:
    """Table 5: full recomputation, or selective with sequence parallelism; interleaved stages."""
    config = row.config
    stages, chunks = config["pipeline_par"], config["pipeline_interleaving"]
    sizes = {
        "num-layers": config["num_blocks"], "hidden-size": config["hidden"],
        "num-attention-heads": config["attn_heads"], "seq-length": config["seq_size"],
        "tensor-model-parallel-size": config["tensor_par"], "pipeline-model-parallel-size": stages,
        "micro-batch-size": config["microbatch_size"], "global-batch-size": config["batch_size"],
    }  # fmt: skip
    if chunks > 1:
        sizes["num-layers-per-virtual-pipeline-stage"] = config["num_blocks"] // stages // chunks
    is_full = config["activation_recompute"] == "full"
    flags = _FULL if is_full else ("--recompute-granularity", "selective", "--sequence-parallel")
    seconds = row.value if row.unit == "s" else row.value / 1000
    world = config["num_procs"]
    n = config["batch_size"] // config["data_par"] // config["microbatch_size"]
    name = f"{row.model} {'full' if is_full else 'selective'}"
    return TimeRow(
        name,
        "Korthikanti, Table 5",
        "a100-80gb",
        world,
        None,
        _megatron(sizes, flags),
        "auto",
        seconds,
        n,
        False,
    )


def _is_local_test(row: Row) -> bool:
    """Megatron-LM's functional tests of the layers that the example also has."""
    is_gpt = row.config["test_case"].startswith(("gpt/", "moe/"))
    return row.hardware in _TEST_CARDS and is_gpt and row.config["args"].get("transformer-impl") == "local"


def _functional_test(row: Row) -> TimeRow:
    """Twelve narrow layers, host-bound, in deterministic mode."""
    config = row.config
    world = (config["nodes"] or 1) * (config["gpus_per_node"] or 8)
    case = Case(row.model, row.hardware, "", 0, world, config["args"], "")
    command = (SCRIPT, *arguments_of(case))
    return TimeRow(
        row.model,
        "Megatron-LM functional tests",
        _TEST_CARDS[row.hardware],
        world,
        None,
        command,
        "auto",
        row.value,
        1,
        False,
    )


def _accumulated(command: tuple[str, ...], world_size: int) -> int:
    if "--global-batch" not in command or "--micro-batch" not in command:
        return 1
    whole, micro = (int(command[command.index(word) + 1]) for word in ("--global-batch", "--micro-batch"))
    return max(whole // micro // world_size, 1)
