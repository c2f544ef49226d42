"""Megatron-core's own schedules, layers and optimizers run as they are, on every axis of parallelism."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.commands.cli import read_json, windtunnel
from tests.commands.warm import warm_python
from windtunnel.events.file import read_recording
from windtunnel.events.model import Op

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "megatron"
PUBLISHED = ROOT.parent / "shared" / "data" / "published" / "measurements.json.gz"
needs_megatron = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed"
)
MODEL = """--num-layers 2 --hidden-size 256 --num-attention-heads 8 --seq-length 128 --micro-batch-size 2 --train-iters 2
--vocab-size 1000 --bf16 --global-batch-size 8""".split()
N_PARAMETERS = 1024 * 256 + 128 * 256 + 2 * (12 * 256 * 256 + 13 * 256) + 2 * 256  # of MODEL, on one rank


@pytest.fixture(scope="module")
def arguments():
    """The example's arguments.py, which needs no Megatron."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        import arguments
    finally:
        sys.path.remove(str(EXAMPLE))
    return arguments


def train(tmp_path: Path, world_size: int, ranks: str, *more: str) -> list[dict]:
    """The simulated ranks of a small run."""
    done = windtunnel(
        "run", "--device", "a100-80gb", "--world-size", world_size, "--ranks", ranks, "--out", tmp_path / "out",
        "--force", EXAMPLE / "pretrain_gpt.py", *MODEL, *more, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    wanted = {int(rank) for rank in ranks.split(",")}
    found = [rank for rank in read_json(tmp_path / "out")["ranks"] if rank["rank"] in wanted]
    assert [rank["status"] for rank in found] == ["ok"] * len(wanted)
    return found


def peak_mib(rank: dict) -> float:
    return rank["peak_bytes"] / 2**20


@needs_megatron
@pytest.mark.thorough
def test_tensor_and_sequence_parallelism_halve_a_rank(tmp_path):
    whole = peak_mib(train(tmp_path, 1, "0")[0])
    half = peak_mib(train(tmp_path, 2, "0", "--tensor-model-parallel-size", "2", "--sequence-parallel")[0])
    assert 0.45 * whole < half < 0.6 * whole


@needs_megatron
def test_the_first_stage_of_1f1b_holds_more_micro_batches_than_the_last(tmp_path):
    more = ("--num-layers", "8", "--pipeline-model-parallel-size", "2", "--vocab-size", "256")
    first, last = train(tmp_path, 2, "0,1", *more, "--untie-embeddings-and-output-weights")
    # 4 layers each; the first keeps the activations of two micro-batches, the last those of one and its logits
    assert first["peak_bytes"] > last["peak_bytes"] + 4 * 1024 * 1024
    assert first["at_peak_bytes"]["activations"] > 1.5 * last["at_peak_bytes"]["activations"]


@needs_megatron
def test_the_interleaved_schedule_runs_both_chunks(tmp_path):
    more = (
        "--num-layers",
        "4",
        "--pipeline-model-parallel-size",
        "2",
        "--num-layers-per-virtual-pipeline-stage",
        "1",
    )
    (rank,) = train(tmp_path, 2, "0", *more)
    assert rank["steps"] == 2
    recording = read_recording(tmp_path / "out" / "rank0" / "recording.arrows")
    ops = [recording.signatures[e.signature].name for e in recording.events() if isinstance(e, Op)]
    # 4 micro-batches through 2 chunks of one layer, twice
    assert ops.count("scaled_upper_triang_masked_softmax_cuda.forward.default") == 4 * 2 * 2


@needs_megatron
@pytest.mark.thorough  # test_parallel_scripts.py shows sharded optimizers, the benchmark Megatron's
def test_the_distributed_optimizer_splits_twelve_bytes_of_every_parameter(tmp_path):
    (plain,) = train(tmp_path, 2, "0")
    (split,) = train(
        tmp_path, 2, "0", "--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"
    )
    saved = plain["peak_bytes"] - split["peak_bytes"]
    assert saved == pytest.approx(12 * N_PARAMETERS / 2, rel=0.02)


@needs_megatron
@pytest.mark.thorough  # Qwen with recomputation, below, shows the same
def test_recomputation_lowers_the_peak(tmp_path):
    # unfused attention keeps its scores: selective recomputation gives up exactly those
    full = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
    longer = ("--seq-length", "512", "--num-layers", "4")
    none, selective, whole = (
        peak_mib(train(tmp_path, 1, "0", *longer, *more)[0])
        for more in ((), ("--recompute-granularity", "selective"), full)
    )
    assert whole < selective < 0.8 * none


@needs_megatron
def test_experts_are_split_and_get_equal_shares_of_the_tokens(tmp_path):
    more = ("--num-experts", "4", "--disable-bias-linear", "--moe-token-dispatcher-type", "alltoall")
    (rank,) = train(tmp_path, 2, "0", *more, "--expert-model-parallel-size", "2")
    values = " ".join(unknown["where"] for unknown in rank["unknown_values"])
    assert "moe" not in values  # no token count was invented
    assert "experts.py" not in values


@needs_megatron
@pytest.mark.parametrize("recompute", [False, True])
def test_qwen_agrees_with_the_published_real_run(recompute, monkeypatch):
    from benchmarks import qwen_table
    from benchmarks.qwen_table import PUBLISHED as measured
    from benchmarks.qwen_table import run_job, terms_of

    monkeypatch.setattr(qwen_table, "sys", SimpleNamespace(executable=warm_python()))
    (first, last), _ = run_job(recompute, n_samples=4)
    used, with_fragments = measured[recompute, 0][0]
    assert first.peak_mib == pytest.approx(used, rel=0.01)
    assert first.with_fragments_mib == pytest.approx(with_fragments, rel=0.02)
    assert first.peak_mib == pytest.approx(sum(terms_of(0, recompute).values()), abs=5)
    # and two activations that the schedule's own variables hold, of 35 MiB each
    assert last.peak_mib == pytest.approx(sum(terms_of(1, recompute).values()) + 70, abs=5)
    assert (last.peak_mib > first.peak_mib) is recompute


# -- arguments ----------------------------------------------------------------------------------------------

WRONG = {
    "world size 4 is not a multiple of 3": "--tensor-model-parallel-size 3",
    "world size 4 is not a multiple of 8 = tensor 2 x pipeline 4": "--tensor-model-parallel-size 2"
    " --pipeline-model-parallel-size 4",
    "6 attention heads cannot be split over 4": "--num-attention-heads 6 --tensor-model-parallel-size 4",
    "2 query groups cannot be split over 4": "--group-query-attention --num-query-groups 2"
    " --tensor-model-parallel-size 4",
    "7 layers cannot be split evenly over 2": "--num-layers 7 --pipeline-model-parallel-size 2",
    "cannot be split into chunks of 3 on 2 stages": "--num-layers 8 --pipeline-model-parallel-size 2"
    " --num-layers-per-virtual-pipeline-stage 3",
    "needs a multiple of 2 micro-batches": "--num-layers 8 --pipeline-model-parallel-size 2"
    " --num-layers-per-virtual-pipeline-stage 1 --global-batch-size 12",
    "global batch size 6 is not a multiple of 8": "--global-batch-size 6",
    "--fp16 and --bf16 are both given": "--fp16",
    "--fp8-format needs Transformer Engine": "--fp8-format hybrid",
    "--no-such-thing is not an argument": "--no-such-thing",
    "the vocabulary of Llama2Tokenizer is not known": "--tokenizer-type Llama2Tokenizer --vocab-size 0",
}


@pytest.mark.parametrize("sentence", WRONG)
def test_a_wrong_strategy_is_one_sentence(arguments, monkeypatch, sentence):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(SystemExit, match=re.escape(sentence)):
        arguments.parse_arguments([*MODEL, *WRONG[sentence].split()])


@needs_megatron
def test_a_wrong_strategy_ends_a_dry_run_with_its_sentence(tmp_path):
    script = EXAMPLE / "pretrain_gpt.py"
    done = windtunnel(
        "run", "--world-size", 4, "--ranks", "0", "--out", tmp_path / "out", script, *MODEL,
        "--tensor-model-parallel-size", "3", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 3
    assert "world size 4 is not a multiple of 3 = tensor 3" in " ".join((done.stdout + done.stderr).split())


def test_every_argument_of_the_published_command_is_understood(arguments, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    shown = subprocess.run(
        ["sh", str(EXAMPLE / "qwen25_7b.sh")], env={"LAUNCH": "echo", "RECOMPUTE": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    args = arguments.parse_arguments(shlex.split(shown.stdout)[1:])
    assert (args.num_microbatches, args.data_parallel_size, args.padded_vocab_size) == (64, 1, 152064)
    assert (args.recompute_granularity, args.recompute_num_layers) == ("full", 1)


def test_vocabularies_are_padded_as_megatron_pads_them(arguments, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    args = arguments.parse_arguments([*MODEL, "--vocab-size", "50257", "--tensor-model-parallel-size", "4"])
    assert args.padded_vocab_size == 50688  # the next multiple of 128 x 4


def test_layers_with_experts_are_written_as_megatron_writes_them(arguments, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    args = arguments.parse_arguments([*MODEL, "--moe-layer-freq", "([0]*1+[1]*1)"])
    assert args.moe_layer_freq == [0, 1]


@pytest.mark.skipif(not PUBLISHED.exists(), reason="published measurements are not here")
def test_every_published_gpt_configuration_is_understood_or_refused_with_a_reason(arguments, monkeypatch):
    rows = json.loads(gzip.decompress(PUBLISHED.read_bytes()))
    tests = {
        row["model"]: row["config"]
        for row in rows
        if row["source"] == "Megatron-LM CI golden" and row["config"]["test_case"].startswith("gpt/")
    }
    assert len(tests) > 50
    unexplained = []
    for name, config in tests.items():
        monkeypatch.setenv("WORLD_SIZE", str((config["nodes"] or 1) * (config["gpus_per_node"] or 8)))
        words = []
        for key, value in config["args"].items():
            words += [f"--{key}"] if value is True else [f"--{key}", str(value)]
        try:
            arguments.parse_arguments(words)
        except SystemExit as refusal:
            if "is not an argument of this script" in str(refusal):
                unexplained.append((name, str(refusal)))
    assert unexplained == []
