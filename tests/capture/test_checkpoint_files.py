"""Saving and loading in a dry run: nothing real is lost, and real files give their shapes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tests.capture.simulated import run_plainly, simulate


@pytest.fixture
def real_file(tmp_path):
    path = tmp_path / "real.pt"

    def write():
        model = nn.Linear(4, 3)
        torch.save({"model": model.state_dict(), "step": 7, "ids": torch.arange(5)}, path)

    run_plainly(write)
    return path


def test_saving_simulated_weights_is_said_and_loads_again(tmp_path):
    path = tmp_path / "new.pt"

    def program():
        model = nn.Linear(1000, 1000).cuda()
        torch.save({"model": model.state_dict(), "step": 3, "ids": torch.arange(3)}, path)
        del model
        freed = torch.cuda.memory_allocated()
        loaded = torch.load(path, map_location="cpu")
        again = torch.load(path, map_location="cuda")
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
    assert any(n.startswith(f"saved nothing to {path}") for n in run.notices)
    assert path.stat().st_size < 10_000


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
        return temporary.exists()

    run = simulate(program)
    assert run.answer is False
    assert real_file.read_bytes() == before


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
    assert len(run.notices) == 3
    assert all(path.stat().st_size < 10_000 for path in tmp_path.iterdir())


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
    before = safetensors_file.read_bytes()

    def program():
        from safetensors.torch import load_file, save, save_file, save_model

        state = {"w": torch.zeros(3, 4, device="cuda")}
        save_file(state, safetensors_file)
        save_file(state, tmp_path / "new.safetensors")
        save_model(nn.Linear(4, 4).cuda(), str(tmp_path / "model.safetensors"))
        again = load_file(tmp_path / "new.safetensors")
        return tuple(again["w"].shape), str(again["w"].device), len(save(state)) > 0

    assert simulate(program).answer[:2] == ((3, 4), "cpu")
    assert safetensors_file.read_bytes() == before


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
    subprocess.run([sys.executable, "-c", TINY, str(folder)], check=True, capture_output=True)
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
    assert saved.stat().st_size < 1000  # a marker
