"""What each source trained, as a command: llm-foundry's MPT, torchtitan's and torchao's Llama.

    Row ──> PublishedRun, or NotRunnable with the reason

What a row does not say is taken from the source's repository at the row's date: `_ERAS` has what changed in torchtitan.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

from benchmarks.published.row import (
    H100_OF_TITAN,
    PROGRAMS,
    NotRunnable,
    PublishedRun,
    Row,
    bytes_of,
)

__all__ = ["mosaic_run", "titan_run"]

_MPT = {  # d_model, layers
    "125m": (768, 12), "350m": (1024, 24), "760m": (1536, 24), "1b": (2048, 24), "3b": (2560, 32),
    "7b": (4096, 32), "13b": (5120, 40), "30b": (7168, 48), "70b": (8192, 80),
}  # fmt: skip
_MPT_PEAK = {"a100": 312e12, "h100": 989.5e12}  # composer/callbacks/speed_monitor.py
_METRICS = {
    "throughput": "tokens_per_s_per_gpu",
    "iteration_time": "step_time_s",
    "mfu": "mfu",
    "peak_reserved_memory": "peak_reserved",
    "peak_active_memory": "peak_active",
    "peak_allocated_memory": "peak_allocated",
}

# Dates of torchtitan's commits in the published rows: the program changed over time.
_DATES = {
    "83c879f18": "2024-03-28", "6aac93843": "2024-04-16", "3faaa1a0d": "2024-04-16", "40f8fd007": "2024-06-06",
    "9dec370": "2024-12-26", "2271b6386": "2025-01-31", "5940ddeb5": "2025-02-06", "88247277c": "2025-02-06",
    "069bae286": "2025-02-27", "986f6800f": "2025-03-20", "e23bb707d": "2025-03-24", "d9bdfbb20": "2025-11-15",
    "fca8ab7be": "2026-03-13", "a364b4b4f": "2026-04-28", "27aa49077": "2026-06-02",
}  # fmt: skip
_ERAS = (  # until this date, these arguments
    ("2024-06-12", ("--hold-logits",)),
    ("2024-10-22", ("--logits", "float-in-model")),
    ("2025-03-19", ("--norm", "plain")),
    ("2025-07-28", ("--units", "blocks")),
    ("2026-01-27", ("--repeat-kv",)),
)
_FUSED_FROM = "2025-02-24"
_BLOCKS_COMPILED_FROM = "2024-05-21"  # before, the whole model, after it was sharded
_LOSS_COMPILED = (("2024-10-22", "2024-12-18"), ("2025-04-02", "9"))  # from, until
_TORCHAO_DATES = {  # of torchtitan, by the version of torch: torchao's docs/source/workflows/training.md
    "2.7.0a0": "2025-03-12", "2.9.0.dev": "2025-08-08",
}  # fmt: skip
_AMAX_KEPT_FROM = "2024-11-26"  # by operator-wise checkpointing, for float8
_ABS_KEPT_UNTIL = "2025-02-06"
_CUDNN_KEPT_FROM = "2025-12-01"  # its attention
_CUDNN_ON_BLACKWELL_FROM = "2025-05-14"
_LLAMAS = {  # parameters without the embedding, layers, width: for the source's flops formula
    "llama2-7b": (6607343616, 32, 4096), "llama2-13b": (12852024320, 40, 5120), "llama2-70b": (68714504192, 80, 8192),
    "llama3-8b": (7504924672, 32, 4096), "llama3-70b": (69503033344, 80, 8192),
    "llama3-405b": (403752042496, 126, 16384),
}  # fmt: skip


def mosaic_run(row: Row) -> PublishedRun:
    """A line of llm-foundry's throughput tables (scripts/train/benchmarking/README.md)."""
    config, size = row.config, row.model.removeprefix("MPT-")
    if "fp8" in config["Precision"]:
        raise NotRunnable("its linear layers are Transformer Engine's, in float8")
    if size not in _MPT or config["Activation CPUOffload"] != "False":
        raise NotRunnable("not a model or an option of the program")
    world, seq_len = int(config["# GPUs"]), int(config["SeqLen (T)"])
    command = (
        str(PROGRAMS / "mpt_fsdp.py"), "--model", size, "--seq-len", str(seq_len),
        "--micro-batch", config["MicroBatchSize"], "--global-batch", config["GlobalBatchSize"],
        "--sharding", config["Sharding Strategy"],
    )  # fmt: skip
    if config["Activation Checkpointing"] == "True":
        command += ("--activation-checkpointing",)
    width, layers = _MPT[size]
    is_a100 = row.hardware.startswith("a100")
    return PublishedRun(
        id=_id(row, "mpt"),
        source=row.source,
        hardware=row.hardware,
        device=row.hardware.replace("_", "-"),
        world_size=world,
        nproc_per_node=min(8, world),
        network="nics=8,bandwidth=25GB/s" if is_a100 else None,  # 1600 Gbps between nodes, said of A100 only
        command=command,
        metric=_METRICS[row.metric],
        value=row.value,
        tokens_per_step_per_gpu=int(config["GlobalBatchSize"]) * seq_len / world,
        notes=f"NumParams {config['NumParams']}",
        flops_per_token=3 * (2 * int(config["NumParams"]) + layers * 4 * width * seq_len),
        peak_flops=_MPT_PEAK["a100" if is_a100 else "h100"],
        quality=row.quality,
    )


def titan_run(row: Row) -> PublishedRun:
    """A Llama of torchtitan, from its tables, its commit messages or torchao's tables."""
    config = row.config
    model = _llama_of(row.model)
    _refuse_other_programs(config)
    world = config.get("gpus")
    if not isinstance(world, int):
        raise NotRunnable("its number of devices was not published")
    if "ac" not in config and row.source == "torchtitan docs":
        raise NotRunnable("its checkpointing was not published")
    batch = config.get("local_batch_size", config.get("lbs", config.get("batch_size")))
    if batch is None:
        raise NotRunnable("its batch was not published")
    if row.metric not in _METRICS:
        raise NotRunnable(f"{row.metric} is not a figure of a step")
    date = _date_of(row)
    seq_len = config.get("seq_len", 4096 if model.startswith("llama2") else 8192)
    seq_len = int(str(seq_len).split()[0])
    tp = config.get("tp", 1)
    command = (
        str(PROGRAMS / "llama_fsdp2.py"), "--model", model, "--seq-len", str(seq_len),
        "--local-batch", str(batch), "--tp", str(tp), "--ac", _checkpointing_of(config, model),
        *(word for until, words in _ERAS if date < until for word in words),
        "--optimizer", "fused" if date >= _FUSED_FROM else "foreach",
    )  # fmt: skip
    is_compiled = bool(config.get("compile")) and config["compile"] != "?"
    command += (*_float8_words(row), *_also_kept(row, date))
    if _titan_device(row).startswith("b200") and date >= _CUDNN_ON_BLACKWELL_FROM:
        command += ("--attention", "cudnn")
    if is_compiled:
        command += ("--compile", "blocks" if date >= _BLOCKS_COMPILED_FROM else "model")
        if any(first <= date < end for first, end in _LOSS_COMPILED):
            command += ("--compile-loss",)
    if "FSDP1" in config.get("impl", ""):
        command += ("--fsdp1",)
    if config.get("reshard_after_forward") == "always":
        command += ("--reshard", "always")
    if "chunked" in config.get("loss", ""):
        command += ("--loss-chunks", "8")
    metric = _METRICS[row.metric]
    n_params, layers, width = _LLAMAS[model]
    embedding = width * (32000 if model.startswith("llama2") else 128256)  # counted in the first formula
    device = _titan_device(row)
    return PublishedRun(
        id=_id(row, model),
        source=row.source,
        hardware=row.hardware,
        device=device,
        world_size=world,
        nproc_per_node=min(8, world),
        network="nics=8,bandwidth=50GB/s" if device == H100_OF_TITAN else None,
        command=command,
        metric=metric,
        value=bytes_of(row) if metric.startswith("peak_") else row.value,
        tokens_per_step_per_gpu=batch * seq_len / tp,
        notes=f"torchtitan of {date}",
        allocator="cuda-expandable" if date > "2024-04-01" and not device.startswith("mi300x") else None,
        flops_per_token=6 * (n_params + (embedding if date < "2024-06" else 0))
        + 12 * layers * width * seq_len,
        peak_flops=312e12 if device.startswith("a100") else 989e12,
        is_compiled=is_compiled,
        quality=row.quality,
    )


def _id(row: Row, what: str) -> str:
    return f"{row.index}:{what}:{row.metric}"


def _llama_of(name: str) -> str:
    found = re.fullmatch(r"Llama ?([23])?(?:\.1)? ?-?(\d+)[bB]", name.replace("-", " ").replace("  ", " "))
    model = f"llama{found[1] or 2}-{found[2]}b" if found else ""
    if model not in _LLAMAS:
        raise NotRunnable(f"{name} is not a dense Llama of torchtitan")
    return model


def _refuse_other_programs(config: dict[str, Any]) -> None:
    precision = str(config.get("precision", "bf16")).lower()
    if config.get("opt") == "float8" or not re.match(r"bf16|float8( |$)", precision):
        raise NotRunnable("its linear layers are torchao's, in fewer bits")
    if "sp" in config:
        raise NotRunnable("its sequence parallelism folded the batch, a plan the program does not have")
    for axis in ("pp", "cp", "ep"):
        if config.get(axis, 1) != 1:
            raise NotRunnable(f"the program has no {axis}")
    if "engine" in config or "inductor" in config or "SimpleFSDP" in config.get("method", ""):
        raise NotRunnable("a graph compiler's program, not eager FSDP2")
    if config.get("attention", "SDPA") != "SDPA":
        raise NotRunnable(f"its attention is {config['attention']}")
    if str(config.get("ac", "")).startswith("graph"):
        raise NotRunnable("its checkpointing is a graph pass")
    if config.get("async_tp") or config.get("tp_mode") == "async TP":
        raise NotRunnable("asynchronous tensor parallelism is inductor's")


def _float8_words(row: Row) -> tuple[str, ...]:
    """What multiplies in float8."""
    config, precision = row.config, str(row.config.get("precision", "bf16"))
    if not (config.get("float8") or precision.startswith("float8")):
        return ()
    if find_spec("torchao") is None:
        raise NotRunnable("its linear layers are torchao's, which is not installed")
    if row.notes.startswith(("step 1:", "CUDA memory usage for model")):
        raise NotRunnable("a figure of before there were optimizer states")
    if "rowwise" in precision:
        recipe = "rowwise"
    else:  # torchtitan's docs gather in float8, as torchao's do
        is_gathered = "all-gather" in precision or config.get("float8") or row.source.startswith("torchao")
        recipe = "tensorwise-gathered" if is_gathered else "tensorwise"
    return "--float8", recipe


def _also_kept(row: Row, date: str) -> tuple[str, ...]:
    """Operators that operator-wise checkpointing kept besides products, attention and reduce-scatters."""
    is_abs_kept = date < _ABS_KEPT_UNTIL or "abs saved" in str(row.config.get("ac"))
    names = ("abs", "max") if is_abs_kept else ("max",)
    if date >= _CUDNN_KEPT_FROM:
        names += ("_scaled_dot_product_cudnn_attention",)
    return ("--also-kept", *names) if date >= _AMAX_KEPT_FROM else ()


def _checkpointing_of(config: dict[str, Any], model: str) -> str:
    text = str(config.get("ac", "selective op")).replace("(", "").replace(")", "").lower()
    if text in ("none", "no"):
        return "none"
    if text.startswith("full"):
        return "full"
    if "layer" in text:
        return "selective-layer"
    if text == "eager sac":
        raise NotRunnable("a graph compiler's program, not eager FSDP2")
    if text.startswith("selective"):
        return "selective-op"
    raise NotRunnable(f"its checkpointing {config['ac']!r} is not known")


def _date_of(row: Row) -> str:
    """The date of the program version; today's, if the row does not say."""
    told = re.search(r"\((\d{4}-\d\d-\d\d)\)", str(row.config.get("framework", "")))
    if told:
        return told[1]
    if row.source.startswith("torchao"):
        return _TORCHAO_DATES.get(row.config.get("torch", ""), "2025-04-01")
    month = re.search(r"_(20\d\d-\d\d)_", row.where)
    if month:
        return f"{month[1]}-01"
    commit = re.search(r"commit ([0-9a-f]{7,})|@([0-9a-f]{7,})", row.where)
    known = _DATES.get((commit[1] or commit[2]) if commit else "")
    return known or "2025-04-01"


def _titan_device(row: Row) -> str:
    if "A100" in row.hardware:
        return "a100-80gb"
    if "H100" in row.hardware:
        return H100_OF_TITAN
    if "MI300X" in row.hardware:
        return "mi300x-192gb"
    if "B200" in row.hardware:
        return "b200-180gb"
    raise NotRunnable(f"no device is known for {row.hardware!r}")
