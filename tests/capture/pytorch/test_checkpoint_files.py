"""Saving and loading in a dry run: nothing real is lost, and real files give their shapes."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import windtunnel
from tests.capture.pytorch.simulated import run_plainly, simulate
from tests.commands.warm import run_warm_python
from windtunnel.isolation.true_size import size_of_file


@pytest.fixture
def real_file(tmp_path):
    path = tmp_path / "real.pt"

    def write():
        model = nn.Linear(4, 3)
        torch.save({"model": model.state_dict(), "step": 7, "ids": torch.arange(5)}, path)

    run_plainly(write)
    return path


def test_saving_simulated_weights_is_reported_and_loads_again(tmp_path):
    path = tmp_path / "new.pt"

    def program():
        model = nn.Linear(1000, 1000).cuda()
        torch.save({"model": model.state_dict(), "step": 3, "ids": torch.arange(3)}, path)
        del model
        freed = torch.cuda.memory_allocated()
        loaded = torch.load(path, map_location="cpu")
        again = torch.load(path, map_location="cuda")
        torch.serialization.clear_safe_globals()  # the script's own list: what describes a tensor is not its business
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        fresh = nn.Linear(1000, 1000).cuda()
        fresh.load_state_dict(loaded["model"])
        return (
            freed,
            loaded["step"],
            loaded["ids"].tolist(),
            str(loaded["model"]["weight"].device),
            tuple(again["model"]["weight"].shape),
            str(again["model"]["weight"].device),
        )

    run = simulate(program)
    assert run.answer == (0, 3, [0, 1, 2], "cpu", (1000, 1000), "cuda:0")
    assert run.notices == ["checkpoints written by a dry run contain shapes but no values"]
    assert path.stat().st_size < 10_000
    assert 4 * 1001 * 1000 < size_of_file(str(path)) < 4 * 1001 * 1000 + 10_000


def test_what_a_dry_run_saved_is_refused_by_a_real_run(tmp_path):
    path = tmp_path / "new.pt"
    simulate(lambda: torch.save(nn.Linear(1000, 1000).cuda().state_dict(), path))

    def load():
        with pytest.raises(RuntimeError, match="written by a dry run: it has a shape but no values"):
            torch.load(path, weights_only=False)
        return True

    assert run_plainly(load)


def test_a_real_file_is_never_touched(real_file):
    before = real_file.read_bytes()

    def program():
        weights = nn.Linear(4, 3).cuda().state_dict()
        torch.save(weights, real_file)
        temporary = real_file.with_suffix(".tmp")
        torch.save(weights, temporary)
        os.replace(temporary, real_file)
        torch.save(weights, temporary)
        temporary.rename(real_file)
        torch.save(weights, temporary)
        temporary.replace(real_file)
        import shutil

        torch.save(weights, temporary)
        shutil.move(temporary, real_file)
        assert not temporary.exists()
        assert torch.load(real_file)["weight"].shape == (3, 4)

    report = windtunnel.dry_run(program)
    assert report.ranks[0].error is None
    assert real_file.read_bytes() == before
    assert [(change.what, change.path) for change in report.files.changes] == [("replaced", str(real_file))]


@dataclass
class Holder:
    tensor: torch.Tensor


def test_tensors_hidden_in_objects_are_found(tmp_path):
    def program():
        hidden = Holder(torch.zeros(1 << 20, device="cuda"))
        torch.save({"deep": [hidden]}, tmp_path / "hidden.pt")
        optimizer = torch.optim.AdamW(nn.Linear(4, 4).cuda().parameters())
        torch.save(optimizer, tmp_path / "optimizer.pt")
        torch.save(nn.Linear(4, 4).cuda(), tmp_path / "module.pt")
        loaded = torch.load(tmp_path / "hidden.pt", weights_only=False)
        return tuple(loaded["deep"][0].tensor.shape)

    run = simulate(program)
    assert run.answer == (1 << 20,)
    sizes = {path.name: size_of_file(str(path)) - path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes["hidden.pt"] == 4 << 20
    assert sizes["module.pt"] == 4 * (4 * 4 + 4)


def test_real_objects_are_saved_for_real(tmp_path):
    path = tmp_path / "data.pt"

    def program():
        torch.save({"ids": torch.arange(5), "names": ["a"]}, path)

    assert simulate(program).notices == []
    assert run_plainly(lambda: torch.load(path)["ids"].tolist()) == [0, 1, 2, 3, 4]


def test_streams_and_buffers_round_trip():
    def program():
        import io

        buffer = io.BytesIO()
        torch.save({"w": torch.zeros(1 << 20, device="cuda"), "k": torch.arange(3, device="cuda")}, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, map_location="cuda")
        return tuple(loaded["w"].shape), loaded["k"].tolist(), len(buffer.getvalue()) < 10_000

    assert simulate(program).answer == ((1 << 20,), [0, 1, 2], True)


@pytest.mark.parametrize(
    "options",
    [
        {"map_location": "cuda"},
        {"map_location": "cuda:0", "weights_only": True},
        {"map_location": torch.device("cuda"), "mmap": True},
        {"map_location": lambda storage, location: storage.cuda()},
        {"map_location": {"cpu": "cuda:0"}},
    ],
    ids=["word", "weights only", "mmap", "function", "dict"],
)
def test_real_files_load_onto_the_device(real_file, options):
    def program():
        loaded = torch.load(real_file, **options)
        model = nn.Linear(4, 3).cuda()
        model.load_state_dict(loaded["model"])
        w = loaded["model"]["weight"]
        return str(w.device), tuple(w.shape), str(w.dtype), loaded["step"], loaded["ids"].tolist()

    assert simulate(program).answer == ("cuda:0", (3, 4), "torch.float32", 7, [0, 1, 2, 3, 4])


def test_real_files_load_onto_the_host(real_file):
    def program():
        loaded = torch.load(real_file, map_location="cpu")
        model = nn.Linear(4, 3)
        model.load_state_dict(loaded["model"])
        model.cuda()
        assigned = nn.Linear(4, 3)
        assigned.load_state_dict(torch.load(real_file)["model"], assign=True)
        return loaded["ids"].tolist(), str(model.weight.device), str(assigned.cuda().weight.device)

    assert simulate(program).answer == ([0, 1, 2, 3, 4], "cuda:0", "cuda:0")


@pytest.fixture
def safetensors_file(tmp_path):
    path = tmp_path / "real.safetensors"

    def write():
        from safetensors.torch import save_file

        save_file({"w": torch.ones(3, 4), "ids": torch.arange(5)}, path)

    run_plainly(write)
    return path


def test_safetensors_load_onto_the_device(safetensors_file):
    def program():
        import safetensors.torch
        from safetensors import safe_open
        from safetensors.torch import load_file

        loaded = load_file(safetensors_file, device="cuda")
        found = [str(loaded["w"].device), loaded["ids"].tolist()]
        for device in ("cuda", "cuda:0", 0, "cpu"):
            with safe_open(safetensors_file, framework="pt", device=device) as f:
                found += [str(f.get_tensor("w").device), tuple(f.get_slice("w")[:2].shape), sorted(f.keys())]
        raw = safetensors.torch.load(safetensors_file.read_bytes())
        model = nn.Linear(4, 3, bias=False).cuda()
        return found, raw["ids"].tolist(), tuple(model.weight.shape)

    found, raw, _ = simulate(program).answer
    assert found[:2] == ["cuda:0", [0, 1, 2, 3, 4]]
    assert found[2:] == ["cuda:0", (2, 4), ["ids", "w"]] * 3 + ["cpu", (2, 4), ["ids", "w"]]
    assert raw == [0, 1, 2, 3, 4]


def test_safetensors_are_not_written_as_if_they_were_real(safetensors_file, tmp_path):
    def program():
        from safetensors import safe_open
        from safetensors.torch import load, load_file, save, save_file, save_model

        state = {"w": torch.randn(100_000, 4, device="cuda")[:300]}
        save_file(state, safetensors_file)
        save_file(state, tmp_path / "new.safetensors")
        save_model(nn.Linear(4, 4).cuda(), str(tmp_path / "model.safetensors"))
        again = load_file(tmp_path / "new.safetensors")
        with safe_open(tmp_path / "new.safetensors", framework="pt") as file:
            names = list(file.keys())
        return tuple(again["w"].shape), str(again["w"].device), tuple(load(save(state))["w"].shape), names

    assert simulate(program).answer == ((300, 4), "cpu", (300, 4), ["w"])
    new = tmp_path / "new.safetensors"
    assert (
        size_of_file(str(new)) - new.stat().st_size == 300 * 4 * 4
    )  # the rows that were saved, not their storage

    def read():
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        with pytest.raises(SafetensorError):
            load_file(new)
        return True

    assert run_plainly(read)


TINY = """
import sys
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64,
)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
"""


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    from transformers.models.llama import modeling_llama  # noqa: F401  imported once, for every child

    folder = tmp_path_factory.mktemp("tiny")
    done = run_warm_python(["-c", TINY, folder])
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("how", ["to", "device_map", "dtype"])
def test_a_pretrained_model_loads_and_trains(tiny_model, how, tmp_path):
    def program():
        from transformers import AutoModelForCausalLM

        if how == "device_map":
            model = AutoModelForCausalLM.from_pretrained(tiny_model, device_map="cuda")
        elif how == "dtype":
            model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16).cuda()
        else:
            model = AutoModelForCausalLM.from_pretrained(tiny_model).to("cuda")
        model.gradient_checkpointing_enable()
        ids = torch.randint(0, 128, (2, 16), device="cuda")
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        model.save_pretrained(tmp_path / "saved")
        n = sum(p.numel() for p in model.parameters())
        return {str(p.device) for p in model.parameters()}, {str(p.dtype) for p in model.parameters()}, n

    devices, dtypes, n = simulate(program).answer
    assert devices == {"cuda:0"}
    assert dtypes == {"torch.bfloat16" if how == "dtype" else "torch.float32"}
    assert n > 20_000
    saved = tmp_path / "saved" / "model.safetensors"
    n_bytes = n * (2 if how == "dtype" else 4)
    assert n_bytes < size_of_file(str(saved)) < n_bytes + 40_000
