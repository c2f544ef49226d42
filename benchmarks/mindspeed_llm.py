"""MindSpeed-LLM's own pretrain_gpt.py for Qwen2.5-7B, TP 2 x PP 2, next to the published dry run and real run.

    WINDTUNNEL_MINDSPEED_LLM (its sources, with Megatron-LM's `megatron` in them), WINDTUNNEL_MINDSPEED (MindSpeed's)
        └─> a small tokenizer and dataset ──> windtunnel run pretrain_gpt.py, the published arguments ──> table

Nothing of these sources is changed or part of this repository. WINDTUNNEL_MINDSPEED_PYTHON is a Python that has their
requirements and windtunnel; by default this one. Run as `python -m benchmarks.mindspeed_llm`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.qwen_table import MIB, PUBLISHED

__all__ = ["NO_CLIPPING", "RECOMPUTE", "RankPeak", "Sources", "missing_sources", "prepare", "run_job"]

RECOMPUTE = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1".split()
# MindSpore's dry run reads 0 where a gradient norm is computed, so it never clips; ours reads 1 by default and clips.
NO_CLIPPING = "clip_grads.py:133=0"

# examples/mindspore/qwen25/pretrain_qwen25_7b_32k_ms.sh of MindSpeed-LLM 2.2.0, with the sizes of the tutorial
_ARGUMENTS = """--use-mcore-models --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel
--num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28 --max-position-embeddings 10240
--seq-length 10240 --disable-bias-linear --add-qkv-bias --group-query-attention --num-query-groups 4 --use-flash-attn
--swiglu --use-fused-swiglu --normalization RMSNorm --norm-epsilon 1e-6 --use-fused-rmsnorm
--position-embedding-type rope --rotary-base 1000000 --use-fused-rotary-pos-emb --untie-embeddings-and-output-weights
--micro-batch-size 1 --make-vocab-size-divisible-by 1 --padded-vocab-size 152064 --tokenizer-type PretrainedFromHF
--attention-dropout 0.0 --hidden-dropout 0.0 --train-iters 3 --lr 1.25e-6 --lr-decay-style cosine --min-lr 1.25e-7
--lr-warmup-fraction 0.01 --init-method-std 0.01 --weight-decay 1e-1 --clip-grad 1.0 --adam-beta1 0.9
--adam-beta2 0.95 --initial-loss-scale 4096 --no-gradient-accumulation-fusion --no-masked-softmax-fusion
--attention-softmax-in-fp32 --bf16 --split 100,0,0 --no-load-optim --no-load-rng --no-save-optim --no-save-rng
--seed 1234 --log-interval 1 --save-interval 2000 --eval-interval 2000 --eval-iters 0 --log-throughput
--distributed-backend nccl""".split()

# The script reads a tokenizer and a dataset: the smallest ones, made with the libraries that read them.
_PREPARE = """
import sys
import numpy, torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
end, folder = "<|endoftext|>", sys.argv[1]
words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(1000)} | {end: 1000}, unk_token=end))
words.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=words, eos_token=end, pad_token=end, unk_token=end).save_pretrained(
    f"{folder}/tokenizer"
)
builder = IndexedDatasetBuilder(f"{folder}/text_document.bin", dtype=numpy.int32)
numbers = numpy.random.default_rng(0)
for _ in range(3000):
    builder.add_document(torch.from_numpy(numbers.integers(0, 1000, 1000)), [1000])
builder.finalize(f"{folder}/text_document.idx")
"""


@dataclass(frozen=True)
class Sources:
    """Where the public sources are, and the Python that can run them."""

    llm: Path
    mindspeed: Path
    python: str

    @classmethod
    def from_environment(cls) -> Sources:
        return cls(
            Path(os.environ["WINDTUNNEL_MINDSPEED_LLM"]),
            Path(os.environ["WINDTUNNEL_MINDSPEED"]),
            os.environ.get("WINDTUNNEL_MINDSPEED_PYTHON", sys.executable),
        )

    def environment(self, **more: str) -> dict[str, str]:
        path = f"{Path(self.python).parent}:{os.environ['PATH']}"  # Megatron's Makefile asks `python3` for headers
        folders = {"PYTHONPATH": f"{self.llm}:{self.mindspeed}", "PATH": path}
        return os.environ | folders | {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTHONWARNINGS": "ignore"} | more


@dataclass(frozen=True)
class RankPeak:
    """One simulated rank."""

    rank: int
    used_mib: float
    with_fragments_mib: float


def missing_sources() -> str:
    """Why the sources cannot be used here, or nothing."""
    for name, file in (
        ("WINDTUNNEL_MINDSPEED_LLM", "pretrain_gpt.py"),
        ("WINDTUNNEL_MINDSPEED_LLM", "megatron/core"),
        ("WINDTUNNEL_MINDSPEED", "mindspeed/op_builder"),
    ):
        folder = os.environ.get(name)
        if not folder:
            return (
                f"set {name} to a folder with its sources (MindSpeed-LLM 2.2.0, MindSpeed 2.2.0_core_r0.12.1)"
            )
        if not (Path(folder) / file).exists():
            return f"{name} is {folder}, which has no {file}"
    return ""


def prepare(sources: Sources, folder: Path) -> None:
    """Make the tokenizer and the dataset that the script reads."""
    subprocess.run(
        [sources.python, "-c", _PREPARE, str(folder)],
        env=sources.environment(),
        check=True,
        capture_output=True,
    )


def run_job(
    sources: Sources, folder: Path, n_samples: int, *more: str, values: str = ""
) -> tuple[list[RankPeak], str]:
    """Simulate all four ranks; their peaks, and what was printed."""
    out = folder / "out"
    command = [
        sources.python, "-m", "windtunnel", "run", "--device", "ascend-910b-64gb", "--world-size", "4", "--out", str(out),
        "--force", "pretrain_gpt.py", *_ARGUMENTS, "--global-batch-size", str(n_samples), "--data-path",
        str(folder / "text_document"), "--tokenizer-name-or-path", str(folder / "tokenizer"), "--save",
        str(folder / "checkpoints"), *more,
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=sources.llm,
        env=sources.environment(WINDTUNNEL_VALUES=values),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 4):
        raise SystemExit(done.stdout[-5000:] + done.stderr[-5000:])
    ranks = json.loads((out / "report.json").read_text(encoding="utf-8"))["ranks"]
    peaks = [
        RankPeak(rank["rank"], rank["peak_bytes"] / MIB, rank["peak_with_fragments_bytes"] / MIB)
        for rank in ranks
    ]
    return peaks, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--global-batch-size", type=int, default=64, metavar="N")
    options = parser.parse_args()
    reason = missing_sources()
    if reason:
        raise SystemExit(f"mindspeed_llm: {reason}")
    sources = Sources.from_environment()
    table = Table(title="MindSpeed-LLM, Qwen2.5-7B, 4 Ascend devices, MiB: used / with fragments", box=None)
    for column in ("", "rank", "clips", "does not clip", "MindSpore's dry run", "real run"):
        table.add_column(column, justify="left" if not column else "right")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(sources, folder)
        for recompute in (False, True):
            more = RECOMPUTE if recompute else []
            clipped, _ = run_job(sources, folder, options.global_batch_size, *more)
            unclipped, _ = run_job(sources, folder, options.global_batch_size, *more, values=NO_CLIPPING)
            for ours, other in zip(clipped, unclipped, strict=True):
                published = PUBLISHED.get((recompute, ours.rank // 2))
                real, dry = published or ((0, 0), (0, 0))
                table.add_row(
                    "full recomputation" if recompute else "no recomputation",
                    str(ours.rank),
                    _pair(ours.used_mib, ours.with_fragments_mib),
                    _pair(other.used_mib, other.with_fragments_mib),
                    *(("not published", "") if published is None else (_pair(*dry), _pair(*real))),
                )
    Console().print(table)


def _pair(used: float, with_fragments: float) -> str:
    return f"{used:,.0f} / {with_fragments:,.0f}"


if __name__ == "__main__":
    main()
