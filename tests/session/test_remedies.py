"""Advice is what a dry run with the change says: candidates, the figures they come with, and what is left out."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.commands.cli import read_json, windtunnel
from windtunnel.devices import find_device
from windtunnel.memory.attribution import RoleBytes
from windtunnel.report.results.run import RankResult
from windtunnel.session.remedies import _find_batch, _next_size, _options_given
from windtunnel.session.request import RunRequest
from windtunnel.units import GIB

SCRIPT = """
import argparse, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
{option}
args = parser.parse_args()
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 4096), nn.Linear(4096, 256)
    def forward(self, x):
        return x + self.down(self.up(x).relu())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(6))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step, (x,) in zip(range(2), DataLoader(TensorDataset(torch.zeros(100_000, 256)), batch_size={size})):
    net(x.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OPTION = 'parser.add_argument("--batch-size", type=int, default=8192)'


REQUEST = RunRequest(
    "train.py", (), False, find_device("a100-80gb"), "cuda", "", (0,), 1, 1, False, 1, None, False, False, Path("out")
)  # fmt: skip


def _request(*arguments):
    return replace(REQUEST, arguments=arguments)


def _recording(options=None, loaders=()):
    return SimpleNamespace(footer={"batches": {"options": options or {}, "loaders": list(loaders)}})


def _report(here, name, *options, script=("train.py",)):
    done = windtunnel("run", "--json", "--no-html", "--force", "--out", name, *options, *script, cwd=here)
    assert done.returncode in (0, 4), done.stdout + done.stderr
    return json.loads(done.stdout)


# -- what sets the size of a batch -----------------------------------------------------------------------------


def test_the_option_that_the_script_parsed_is_the_one_to_change_even_if_it_was_not_given():
    batch = _find_batch(_request("--lr", "1"), _recording({"--batch-size": 8}, [8]))
    assert (batch.size, batch.option) == (8, "--batch-size")
    assert batch.how(3) == "--batch-size 3"
    assert batch.asked_for(_request("--lr", "1"), 3).arguments == ("--lr", "1", "--batch-size", "3")


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        (("--batch-size", "8", "-v"), ("--batch-size", "3", "-v")),
        (("--batch-size=8", "-v"), ("--batch-size=3", "-v")),
        (("train.batch_size=8",), ("train.batch_size=3",)),
    ],
)
def test_a_given_option_is_changed_where_it_stands(given, changed):
    batch = _find_batch(_request(*given), _recording())
    assert batch.asked_for(_request(*given), 3).arguments == changed


def test_of_several_options_the_micro_batch_is_meant_and_never_the_global_or_the_evaluations():
    options = {"--global-batch-size": 512, "--micro-batch-size": 4, "--eval-batch-size": 16}
    assert _find_batch(_request(), _recording(options)).option == "--micro-batch-size"
    options = {"--per_device_train_batch_size": 8, "--per_device_eval_batch_size": 8}
    assert _find_batch(_request(), _recording(options)).option == "--per_device_train_batch_size"


def test_where_two_things_might_be_meant_none_is_changed():
    assert _find_batch(_request(), _recording({"--batch-a": 8, "--batch-b": 8})) is None
    assert _find_batch(_request(), _recording({}, [8, 16])) is None
    assert _find_batch(_request(), _recording()) is None


def test_without_an_option_the_loader_is_reported():
    batch = _find_batch(_request(), _recording({}, [8, 8]))
    assert (batch.size, batch.option, batch.how(4)) == (8, "", "DataLoader(..., batch_size=4)")
    assert batch.asked_for(_request(), 4).batch_factor == 0.5


def test_options_are_found_in_every_spelling():
    arguments = ("--batch-size", "8", "--bs=4", "data.batch_size=2", "--batch-size-file", "x", "8")
    assert _options_given(arguments) == {"--batch-size": 8, "--bs": 4, "data.batch_size": 2}


def test_the_next_size_lies_on_the_line_through_two_figures_and_between_what_is_known():
    rank = RankResult(0, "oom", usable_memory_bytes=100 * GIB, at_peak_bytes=RoleBytes(weights=20 * GIB))
    figures = {32: replace(rank, peak_with_fragments_bytes=180 * GIB)}
    assert _next_size(figures, 0, 32, rank) == 15  # (97 - 20) / (160 / 32)
    figures[15] = replace(rank, peak_with_fragments_bytes=95 * GIB)
    assert _next_size(figures, 15, 32, rank) == 16  # the line says 15.4: one more is the next to know
    figures[16] = replace(rank, peak_with_fragments_bytes=101 * GIB)
    assert _next_size(figures, 15, 16, rank) is None


# -- the whole way ---------------------------------------------------------------------------------------------


def test_what_is_advised_was_simulated_and_comes_true_when_it_is_followed(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.format(option=OPTION, size="args.batch_size"))
    device = "2080ti-11gb:mem=1300MiB"
    report = _report(tmp_path, "first", "--device", device, "--advise")
    assert not report["fits"]
    by_what = {remedy["what"]: remedy for remedy in report["advice"]}
    assert "activation checkpointing on layers.0-5" in by_what
    batch = next(what for what in by_what if what.startswith("a batch of"))
    assert all(
        remedy["fits"] for remedy in (by_what["activation checkpointing on layers.0-5"], by_what[batch])
    )
    assert report["verdict"].count("it fits with") == 1
    for what, options, arguments in (
        ("activation checkpointing on layers.0-5", ("--checkpoint", "layers.*"), ()),
        (batch, (), ("--batch-size", batch.split()[3])),
    ):
        again = _report(tmp_path, "again", "--device", device, *options, script=("train.py", *arguments))
        assert again["fits"]
        assert again["ranks"][0]["peak_with_fragments_bytes"] == by_what[what]["needs_bytes"]
    assert not (tmp_path / "first" / "advice").exists()


def test_a_run_that_fits_is_asked_for_a_larger_batch_only_with_advise(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.format(option="", size=1024))
    device = "2080ti-11gb:mem=1300MiB"
    assert _report(tmp_path, "plain", "--device", device)["advice"] == []
    report = _report(tmp_path, "asked", "--device", device, "--advise")
    (remedy,) = report["advice"]
    assert remedy["grows"]
    assert remedy["fits"]
    size = int(remedy["what"].split()[3])
    assert size > 1024
    assert report["verdict"].endswith(
        f"{remedy['what']} would fit too ({remedy['needs_bytes'] / 2**20:.1f} MiB)."
    )
    again = _report(tmp_path, "again", "--device", device, "--batch-factor", str(size / 1024))
    assert again["ranks"][0]["peak_with_fragments_bytes"] == remedy["needs_bytes"]


def test_a_run_that_was_told_not_to_is_not_repeated(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.format(option=OPTION, size="args.batch_size"))
    report = _report(tmp_path, "first", "--device", "2080ti-11gb:mem=1300MiB", "--no-advise")
    assert (report["fits"], report["advice"]) == (False, [])
    assert "it fits with" not in report["verdict"]


def test_wrong_what_ifs_are_refused_in_a_sentence(tmp_path):
    (tmp_path / "train.py").write_text("")
    done = windtunnel("run", "--batch-factor", "0", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "windtunnel: the batch factor is 0, but it must be between 0 and 1,000,000",
    )
    done = windtunnel("run", "--chunk-loss", "0", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "windtunnel: the number of chunks is 0, but at least 1 is needed",
    )
    done = windtunnel("run", "--checkpoint", "layers[0]", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "is not a module path" in done.stderr


def test_a_what_if_that_changes_nothing_says_so(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\ntorch.nn.Linear(2, 2).cuda()(torch.ones(1, 2).cuda())\n"
    )
    options = ("--checkpoint", "layers.*", "--batch-factor", "2", "--chunk-loss", "8")
    notes = _report(tmp_path, "out", *options)["notes"]
    assert "--checkpoint layers.* matches no module that was called" in notes
    assert "--batch-factor changed nothing: the script created no DataLoader with a batch_size" in notes
    assert "--chunk-loss changed nothing: no projection went straight into a cross-entropy" in notes


HUGGING_FACE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=64, hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=4)
model = LlamaForCausalLM(config).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    tokens = torch.zeros(8, 512, dtype=torch.int64, device="cuda")
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_of_a_model_that_checkpoints_itself_only_the_layers_that_match_are_checkpointed(tmp_path):
    (tmp_path / "train.py").write_text(HUGGING_FACE)
    peaks = []
    for layers in ("0", "0-1", "0-2"):
        run = ("run", "--force", "--no-html", "--checkpoint", f"model.layers.{layers}", "train.py")
        done = windtunnel(*run, cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        peaks.append(read_json(tmp_path / "windtunnel-out")["ranks"][0]["peak_bytes"])
    saved = [before - after for before, after in itertools.pairwise(peaks)]
    assert min(saved) > 10 << 20  # of each layer
    assert saved[0] == pytest.approx(saved[1], rel=0.01)
    done = windtunnel("run", "--force", "--no-html", "--checkpoint", "layers.0", "train.py", cwd=tmp_path)
    assert "--checkpoint layers.0 matches no module" in done.stdout


LARGE_LOSS = """
import sys
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=16_000, hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=4)
model = LlamaForCausalLM(config).cuda()
if "checkpointed" in sys.argv:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def loss_of_chunk(x, labels):
    return F.cross_entropy(model.lm_head(x).float(), labels, reduction="sum")

def loss_of(tokens):
    if "chunked" not in sys.argv:
        return model(input_ids=tokens, labels=tokens, use_cache=False).loss
    x = model.model(input_ids=tokens, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)
    labels = tokens[:, 1:].flatten()
    chunks = zip(x.chunk(8), labels.chunk(8), strict=True)
    return torch.stack([checkpoint(loss_of_chunk, *chunk, use_reentrant=False) for chunk in chunks]).sum() / len(labels)

for _ in range(2):
    loss_of(torch.zeros(16, 512, dtype=torch.int64, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CHUNKS = "splitting the cross-entropy over 16,000 classes into 8 chunks"
LAYERS = "activation checkpointing on model.layers.0-3"


@pytest.mark.parametrize(
    ("memory", "what", "options", "arguments"),
    [
        ("1900MiB", CHUNKS, ("--chunk-loss", "8"), ("chunked",)),
        (
            "1000MiB",
            f"{LAYERS} and {CHUNKS}",
            ("--chunk-loss", "8", "--checkpoint", "model.layers.0-3"),
            ("chunked", "checkpointed"),
        ),
    ],
)
def test_a_chunked_loss_was_run_alone_and_with_checkpointing_and_needs_what_a_script_written_so_needs(
    tmp_path, memory, what, options, arguments
):
    (tmp_path / "train.py").write_text(LARGE_LOSS)
    device = f"2080ti-11gb:mem={memory}"
    report = _report(tmp_path, "first", "--device", device, "--advise")
    remedy = next(remedy for remedy in report["advice"] if remedy["what"] == what)
    assert "for 1,024 tokens at a time" in remedy["how"]
    assert "--chunk-loss 8" in remedy["command"]
    again = _report(tmp_path, "again", "--device", device, *options)["ranks"][0]
    assert again["peak_with_fragments_bytes"] == remedy["needs_bytes"]
    followed = _report(tmp_path, "by_hand", "--device", device, script=("train.py", *arguments))["ranks"][0]
    assert followed["peak_with_fragments_bytes"] == pytest.approx(remedy["needs_bytes"], rel=0.02)
    assert remedy["fits"]
    assert followed["fits"]
