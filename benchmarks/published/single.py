"""What the single-device sources trained, as a command: litgpt, torchtune, nanoGPT, the transformers docs.

Row ──> PublishedRun, or NotRunnable with the reason
"""

from __future__ import annotations

import re
from itertools import pairwise

from benchmarks.published.row import PROGRAMS, NotRunnable, PublishedRun, Row, bytes_of

__all__ = ["litgpt_run", "nanogpt_run", "torchtune_run", "transformers_run"]

A10G = str(PROGRAMS / "a10g-24gb.toml")
_EVERYTHING = ("query", "key", "value", "projection", "mlp", "head")
# litgpt, config_hub/finetune/*/lora.yaml: the model of our program, the rank, what is trained
_LORA = {
    "falcon-7b": ("falcon-7b", 32, ("query", "value")),
    "gemma-2b": ("gemma-2b", 8, _EVERYTHING),
    "gemma-7b": ("gemma-7b", 16, _EVERYTHING),
    "llama-2-7b": ("llama-2-7b", 32, ("query", "value")),
    "llama-3-8b": ("llama-3-8b", 32, ("query", "value")),
    "llama-3.1-8b": ("llama-3.1-8b", 32, ("query", "value")),
    "llama-3.2-1b": ("llama-3.2-1b", 32, ("query", "value")),
    "llama-3.2-3b": ("llama-3.2-3b", 32, ("query", "value")),
    "mistral-7b": ("mistral-7b", 32, ("query", "value")),
    "mistral-7b-v0.2": ("mistral-7b", 32, ("query", "value")),
    "phi-2": ("phi-2", 8, _EVERYTHING),
    "phi-3": ("phi-3-mini", 8, _EVERYTHING),
    "stablelm-base-alpha-3b": ("stablelm-3b", 32, ("query", "value")),
    "tiny-llama": ("tiny-llama", 32, _EVERYTHING),
}
_ON_ONE_CARD = ("tiny-llama",)  # the configs that train everything and have `devices: 1`
# litgpt, tutorials/resource-tables.md: the model of our program, and its longest sample of Alpaca in tokens
_TABLES = {
    ("phi-1.5", "1.3 B"): ("phi-1.5", 1044),
    ("StableLM Alpha", "3 B"): ("stablelm-3b", 1034),
    ("Llama 2", "7 B"): ("llama-2-7b", 1304),
    ("Llama 2", "13 B"): ("llama-2-13b", 1304),
}
_LADDER = ("--compile", "--chunked-loss", "--checkpointing", "--optimizer-in-backward")
_RUNGS = {
    "+packed": 0, "+...+packed": 0, "+compile": 1, "+...+compile": 1, "+...+chunked ce": 2,
    "+...+chunked cross entropy": 2, "+...+activation checkpointing": 3, "+...+optimizer in bwd": 4,
}  # fmt: skip
_CONTEXT_BYTES = 1343 << 20  # in use before anything was allocated, according to that page


def litgpt_run(row: Row) -> PublishedRun:
    """A line of litgpt's two tables; both print torch.cuda.max_memory_allocated() / 1e9."""
    if row.metric != "peak_memory":
        raise NotRunnable(f"{row.metric} is not a figure of a step")
    command = _hub_command(row) if "Config" in row.config else _table_command(row)
    words = dict(pairwise(command))
    return PublishedRun(
        id=f"{row.index}:{words['--model']}:{row.metric}",
        source=row.source,
        hardware=row.hardware,
        device=A10G if "A10G" in row.hardware else "a100-40gb",
        world_size=1,
        nproc_per_node=1,
        network=None,
        command=command,
        metric="peak_allocated",
        value=bytes_of(row),
        tokens_per_step_per_gpu=int(words["--micro-batch"]) * int(words["--seq-len"]),
        notes="the longest batch",
        quality=row.quality,
    )


def _hub_command(row: Row) -> tuple[str, ...]:
    name, _, kind = row.config["Config"].removesuffix(".yaml").lower().partition("/")
    if name not in _LORA or kind not in ("lora", "full"):
        raise NotRunnable(
            "its weights are quantised by bitsandbytes" if kind == "qlora" else f"no program for {name}"
        )
    model, rank, trained = _LORA[name]
    command = (
        str(PROGRAMS / "litgpt_finetune.py"), "--model", model, "--micro-batch", row.config["Micro batch size"],
        "--seq-len", row.config["Max seq length"],
    )  # fmt: skip
    if kind == "lora":
        return (*command, "--rank", str(rank), "--trained", *trained)
    if name not in _ON_ONE_CARD:
        raise NotRunnable("its several cards are sharded by Lightning's FSDP strategy")
    return command


def _table_command(row: Row) -> tuple[str, ...]:
    config = row.config
    if config["Quantization"] != "None":
        raise NotRunnable("its weights are quantised by bitsandbytes")
    if "1 GPU" not in config["section"]:
        raise NotRunnable("its several cards are sharded by Lightning's FSDP strategy")
    if "LoRA" not in config["section"]:
        raise NotRunnable("the program has no adapters")
    if (config["Model"], config["Size"]) not in _TABLES:
        raise NotRunnable(f"no program for {config['Model']}")
    model, longest = _TABLES[config["Model"], config["Size"]]
    return (
        str(PROGRAMS / "litgpt_finetune.py"), "--model", model, "--micro-batch", config["Microbatch size"],
        "--seq-len", str(longest), "--rank", "8", "--trained", "query", "value",
    )  # fmt: skip


def torchtune_run(row: Row) -> PublishedRun:
    """A rung of the ladder in torchtune's README."""
    config = row.config
    rung = _RUNGS.get(str(config.get("technique", "")).lower())
    if rung is None:
        raise NotRunnable(
            "the program has no low rank factors, no quantised weights or states and no offloading"
        )
    tokens = config["batch_size"] * config["seq_len"]
    in_backward = rung == len(_LADDER)
    return PublishedRun(
        id=f"{row.index}:llama3.2-3b:{row.metric}",
        source=row.source,
        hardware=row.hardware,
        device="a100-80gb",
        world_size=1,
        nproc_per_node=1,
        network=None,
        command=(
            str(PROGRAMS / "torchtune_full.py"), "--batch", str(config["batch_size"]),
            "--seq-len", str(config["seq_len"]), *_LADDER[:rung], *(("--steps", "2") if in_backward else ()),
        ),
        metric="tokens_per_s_per_gpu" if row.metric == "throughput" else "peak_active",
        value=row.value if row.metric == "throughput" else bytes_of(row),
        tokens_per_step_per_gpu=tokens,
        notes="updates inside backward" if in_backward else "",
        steps=0 if in_backward else 2,  # every parameter has its own optimizer there: the program counts
        is_compiled=rung >= 1,
        quality=row.quality,
    )  # fmt: skip


def nanogpt_run(row: Row) -> PublishedRun:
    """nanoGPT's README and notebook, of December 2022 and January 2023: before it had flash attention."""
    config = row.config
    if row.metric != "iteration_time":
        raise NotRunnable(f"{row.metric} is not a figure of a step")
    micro_batch, accumulate = config.get("batch_size", 12), config.get("grad_accum", 1)
    is_compiled = config.get("compile", True)  # the default of its train.py
    command = (
        str(PROGRAMS / "nanogpt.py"), "--micro-batch", str(micro_batch), "--accumulate", str(accumulate),
        "--attention", "plain", "--optimizer", "foreach",
    )  # fmt: skip
    return PublishedRun(
        id=f"{row.index}:gpt2-124m:{row.metric}",
        source=row.source,
        hardware=row.hardware,
        device="a100-40gb",
        world_size=1,
        nproc_per_node=1,
        network=None,
        command=(*command, "--compile") if is_compiled else command,
        metric="step_time_s",
        value=row.value / {"ms": 1000, "s": 1}[row.unit],
        tokens_per_step_per_gpu=micro_batch * accumulate * config.get("block_size", 1024),
        is_compiled=is_compiled,
        quality=row.quality,
    )


def transformers_run(row: Row) -> PublishedRun:
    """The single-GPU page of the transformers docs: NVML's figure minus what it showed before training."""
    config = row.config
    if "bs" not in config:
        raise NotRunnable("not a figure of a step")
    if config.get("optim", "adamw") not in ("adamw", "adafactor"):
        raise NotRunnable(f"its optimizer is {config['optim']} of bitsandbytes")
    accumulate = config.get("grad_accum", 1)
    command = (
        str(PROGRAMS / "bert_trainer.py"), "--batch", str(config["bs"]), "--accumulate", str(accumulate),
        *(("--fp16",) if config.get("fp16") else ()),
        *(("--gradient-checkpointing",) if config.get("gradient_checkpointing") else ()),
        *(("--optimizer", "adafactor") if config.get("optim") == "adafactor" else ()),
    )  # fmt: skip
    is_memory = row.metric == "nvml_used_memory"
    if not is_memory and row.unit != "samples/s":
        raise NotRunnable(f"its unit {row.unit!r} is not known")
    samples = config["bs"] * accumulate
    found = re.search(r"V100|A100", row.hardware)
    if not found or found[0] != "V100":
        raise NotRunnable(f"no device is known for {row.hardware!r}")
    return PublishedRun(
        id=f"{row.index}:bert-large:{row.metric}",
        source=row.source,
        hardware=row.hardware,
        device="v100-16gb",
        world_size=1,
        nproc_per_node=1,
        network=None,
        command=command,
        metric="peak_reserved" if is_memory else "step_time_s",
        value=bytes_of(row) - _CONTEXT_BYTES if is_memory else samples / row.value,
        tokens_per_step_per_gpu=samples * config["seq_len"],
        notes="NVML minus the context" if is_memory else "",
        quality=row.quality,
    )
