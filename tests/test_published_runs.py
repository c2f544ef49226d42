"""Published measurements become runs: the right program, arguments it takes, the figure in one unit."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from benchmarks.published import row as published_row
from benchmarks.published.row import DATA, NotRunnable, PublishedRun, Row, bytes_of, published_rows
from benchmarks.published.runs import published_runs, why_not
from benchmarks.published.single import litgpt_run, nanogpt_run, torchtune_run, transformers_run
from benchmarks.published.sources import mosaic_run, titan_run
from benchmarks.published_programs import llama_fsdp2, mpt_fsdp
from windtunnel.devices import find_device

needs_data = pytest.mark.skipif(not DATA.exists(), reason="the published measurements are not here")

MPT_7B = {
    "SeqLen (T)": "2048", "# GPUs": "16", "MicroBatchSize": "6", "GradAccum": "2", "GlobalBatchSize": "192",
    "Precision": "amp_bf16", "MP Mode": "DEFAULT", "Sharding Strategy": "FULL_SHARD",
    "Activation Checkpointing": "True", "Activation CPUOffload": "False", "NumParams": "6658859008",
}  # fmt: skip


def row(
    config,
    *,
    model="",
    metric="throughput",
    value=1.0,
    unit="tokens/s/GPU",
    where="",
    hardware="8xH100",
    **more,
):
    return Row(0, more.get("source", ""), where, model, config, hardware, metric, value, unit, "", "A")


def test_amounts_of_memory_are_bytes_whatever_they_were_published_in():
    assert bytes_of(row({}, value=2.0, unit="GiB")) == 2 << 30
    assert bytes_of(row({}, value=2.0, unit="GB")) == 2_000_000_000
    assert bytes_of(row({}, value=2.0, unit="GB(GiB)")) == 2 << 30
    assert bytes_of(row({}, value=3.0, unit="MB(MiB)")) == 3 << 20
    assert bytes_of(row({}, value=50.0, unit="% of 80.0 GiB")) == 40 << 30
    with pytest.raises(NotRunnable, match="furlongs"):
        bytes_of(row({}, unit="furlongs"))


def test_a_step_time_becomes_the_figure_the_source_published():
    run = mosaic_run(row(MPT_7B, model="MPT-7b", hardware="a100_40gb", metric="mfu", unit="%"))
    assert run.tokens_per_step_per_gpu == 12 * 2048
    # 3 passes over 2 flops a parameter, and over attention's 4 x 32 layers x 4096 x 2048
    assert run.flops_per_token == 3 * (2 * 6658859008 + 32 * 4 * 4096 * 2048)
    assert run.predicted(10.0) == pytest.approx(100 * 2457.6 * run.flops_per_token / 312e12)
    tokens = mosaic_run(row(MPT_7B, model="MPT-7b", hardware="a100_40gb"))
    assert tokens.predicted(10.0) == 2457.6
    assert "--activation-checkpointing" in tokens.command
    assert (tokens.device, tokens.network) == ("a100-40gb", "nics=8,bandwidth=25GB/s")
    with pytest.raises(ValueError, match="peak_reserved"):
        PublishedRun("", "", "", "", 1, 1, None, (), "peak_reserved", 1.0, 1.0).predicted(1.0)


def test_what_torchtitan_was_follows_from_the_date_of_the_commit():
    config = {"gpus": 8, "fsdp": 8, "local_batch_size": 1, "ac": "selective op", "compile": False}
    old = titan_run(row(config, model="Llama 3 8B", where="pytorch/torchtitan commit 40f8fd007 message"))
    new = titan_run(row(config, model="Llama 3.1 8B", where="pytorch/torchtitan commit d9bdfbb20 message"))
    assert {"--hold-logits", "float-in-model", "plain", "blocks", "foreach"} < set(old.command)
    assert not {"--hold-logits", "float-in-model", "plain", "blocks", "foreach"} & set(new.command)
    assert old.allocator == new.allocator == "cuda-expandable"
    assert old.tokens_per_step_per_gpu == 8192


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"float8": True}, "torchao"),
        ({"pp": 8}, "no pp"),
        ({"gpus": "?"}, "number of devices"),
        ({"local_batch_size": None}, "batch was not"),
        ({"attention": "FlexAttention"}, "FlexAttention"),
    ],
)
def test_a_row_of_another_program_says_why_it_is_not_run(more, reason):
    config = {"gpus": 8, "local_batch_size": 1, "ac": "full"} | more
    with pytest.raises(NotRunnable, match=reason):
        titan_run(row(config, model="Llama 3 8B"))
    with pytest.raises(NotRunnable, match="DeepSeek"):
        titan_run(row(config, model="DeepSeek-V3 16B"))


def test_sources_with_one_card():
    hub = {"Config": "phi-2/lora.yaml", "Micro batch size": "4", "Max seq length": "512"}
    phi = litgpt_run(row(hub, metric="peak_memory", value=13.98, unit="GB", hardware="1xA10G"))
    assert (phi.value, phi.metric, phi.command[2]) == (13.98e9, "peak_allocated", "phi-2")
    rung = {"batch_size": 2, "seq_len": 4096, "technique": "+...+activation checkpointing"}
    tune = torchtune_run(row(rung, metric="peak_active_memory", value=24.9, unit="GiB"))
    assert tune.command[-3:] == ("--compile", "--chunked-loss", "--checkpointing")
    gpt = nanogpt_run(row({"batch_size": 20, "grad_accum": 5}, metric="iteration_time", value=755, unit="ms"))
    assert (gpt.value, gpt.tokens_per_step_per_gpu) == (0.755, 102400)
    bert = {"seq_len": 512, "bs": 1, "grad_accum": 4, "fp16": True}
    speed = transformers_run(row(bert, value=10.0, unit="samples/s", hardware="1xV100"))
    memory = transformers_run(
        row(bert, metric="nvml_used_memory", value=2343, unit="MB(MiB)", hardware="1xV100")
    )
    assert (speed.value, memory.value) == (0.4, 1000 << 20)


@pytest.mark.parametrize(("size", "length", "n_params"), [("125m", 2048, 125311488), ("1b", 512, 1312804864)])
def test_mpt_has_the_parameters_that_llm_foundry_counted(size, length, n_params):
    with torch.device("meta"):
        model = mpt_fsdp.Mpt(size, length)
    assert sum(p.numel() for p in model.parameters()) == n_params


def test_llama_has_the_parameters_that_torchtitan_counted():
    args = llama_fsdp2.parse(["--model", "llama3-8b"])
    with torch.device("meta"):
        model = llama_fsdp2.Llama(llama_fsdp2.SIZES["llama3-8b"], args)
    assert sum(p.numel() for p in model.parameters()) == 8030261248


def test_the_loss_of_mpt_is_cross_entropy():
    logits = torch.randn(5, 11, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([1, -100, 4, 10, 0])
    loss = mpt_fsdp.CrossEntropy.apply(logits, targets)
    (ours,) = torch.autograd.grad(loss, logits)
    expected = torch.nn.functional.cross_entropy(logits, targets)
    (theirs,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(ours, theirs)


def test_a_batch_is_cut_into_micro_batches_with_the_rest_last():
    assert mpt_fsdp.micro_batches(11, 4) == [4, 4, 3]
    assert mpt_fsdp.micro_batches(8, 8) == [8]


@needs_data
def test_every_row_is_a_run_that_its_program_accepts_or_has_a_reason():
    runs = list(published_runs())
    refused = list(why_not())
    assert len(runs) > 200
    assert len({run.id for run in runs}) == len(runs)
    assert all(reason for _, reason in refused)
    assert not {run.id.split(":")[0] for run in runs} & {str(row.index) for row, _ in refused}
    for run in {(run.device, run.command): run for run in runs}.values():
        path = Path(run.command[0])
        assert path.parent == published_row.PROGRAMS
        importlib.import_module(f"benchmarks.published_programs.{path.stem}").parse(list(run.command[1:]))
        find_device(run.device)


@needs_data
def test_throughput_and_utilisation_of_the_same_run_agree():
    """The source's flops formula, its peak and our tokens per step, checked by figures it published twice."""
    pairs: dict[tuple, dict[str, PublishedRun]] = {}
    for run in published_runs():
        if run.metric in ("mfu", "tokens_per_s_per_gpu"):
            pairs.setdefault((run.source, run.device, run.world_size, run.command), {})[run.metric] = run
    both = [pair for pair in pairs.values() if len(pair) == 2]
    assert len(both) > 100
    for pair in both:
        rate = pair["tokens_per_s_per_gpu"]
        step = rate.tokens_per_step_per_gpu / rate.value
        assert pair["mfu"].predicted(step) == pytest.approx(pair["mfu"].value, rel=0.006)


@needs_data
def test_models_of_the_published_rows_have_the_published_parameters():
    wanted = {
        (row.model.removeprefix("MPT-"), int(row.config["SeqLen (T)"]), int(row.config["NumParams"]))
        for row in published_rows()
        if row.source == "MosaicML llm-foundry"
    }
    for size, length, n_params in wanted:
        width, _, layers = mpt_fsdp.SIZES[size]
        linear = layers * (12 * width**2 + 13 * width)  # products and biases of a block, and its two norms
        assert linear + width * (mpt_fsdp.VOCABULARY + length + 2) == n_params, (size, length)
