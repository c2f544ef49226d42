"""A program computes bit for bit the same with the probe as without it, at every level and task."""

from __future__ import annotations

import random
from contextlib import contextmanager

import numpy
import pytest
import torch

from tests.probe.models import build, train
from tests.probe.probing import make_debugger, read_dump

PROGRAMS = ["mlp", "dropout", "transformer", "lstm", "checkpointed", "in_place", "autocast", "shared", "tied"]
WAYS = {
    "L0": {"level": "L0", "task": "statistics"},
    "L1": {"level": "L1", "task": "statistics", "risk_level": "ALL"},
    "mix": {"level": "mix", "task": "statistics", "summary_mode": "md5", "risk_level": "ALL"},
    "mix tensor": {"level": "mix", "task": "tensor"},
    "L2": {"level": "L2", "task": "statistics"},
    "structure": {"level": "mix", "task": "structure"},
    "overflow": {"level": "mix", "task": "overflow_check"},
    "debug": {"level": "debug", "task": "statistics"},
}
N_STEPS = 3


@pytest.fixture(autouse=True)
def _one_thread():
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)


def _run(name: str, around=None, watch=None) -> dict[str, object]:
    """Everything a program leaves: losses, weights, gradients, buffers, states of the random generators."""
    random.seed(0)
    numpy.random.seed(0)
    model, loss = build(name)
    if watch is not None:
        around, loss = watch(model, loss)
    losses = train(model, loss, N_STEPS, around)
    left: dict[str, object] = {f"loss {step}": value for step, value in enumerate(losses)}
    left |= {f"weight {key}": value.detach().clone() for key, value in model.named_parameters()}
    left |= {f"gradient {key}": value.grad.clone() for key, value in model.named_parameters()}
    left |= {f"buffer {key}": value.clone() for key, value in model.named_buffers()}
    left["torch"] = torch.get_rng_state()
    left["numpy"] = torch.tensor(numpy.random.get_state()[1].astype("int64"))
    left["python"] = torch.tensor(random.getstate()[1])
    return left


@pytest.fixture(scope="module")
def alone():
    """What the programs compute without a probe."""
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    found = {name: _run(name) for name in PROGRAMS}
    torch.set_num_threads(n)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("way", WAYS)
def test_training_is_bit_for_bit_the_same(tmp_path, alone, name, way):
    keys = WAYS[way]

    def watch(model, loss):
        debugger = make_debugger(tmp_path, **keys)

        @contextmanager
        def around(_):
            debugger.start(model)
            yield
            debugger.stop()
            debugger.step()

        def saved(step):
            value = loss(step)
            debugger.save({"loss": value}, "loss")
            return value

        return around, (saved if keys["level"] == "debug" else loss)

    left = _run(name, watch=watch)
    assert left.keys() == alone[name].keys()
    assert [key for key, value in left.items() if not torch.equal(value, alone[name][key])] == []
    assert not list(tmp_path.rglob("dump_error_info.log"))
    for step in range(N_STEPS):
        assert bool(read_dump(tmp_path, step).data) == (way not in ("structure", "overflow"))


@pytest.mark.parametrize("name", ["mlp", "dropout", "in_place"])
def test_torch_keeps_its_own_random_numbers_at_level_mix_with_slices(tmp_path, alone, name):
    def watch(model, loss):
        debugger = make_debugger(
            tmp_path, level="mix", task="tensor", slice=[{"dim": 0, "begin": 0, "end": 1}], precision="high"
        )
        return (lambda _: debugger.watch(model)), loss

    left = _run(name, watch=watch)
    assert [key for key, value in left.items() if not torch.equal(value, alone[name][key])] == []
