"""Inference: a range of tokens, and one request of a batch."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from tests.probe.probing import make_debugger, read_dump
from windtunnel.errors import UsageError


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return torch.tanh(self.fc(x))


def _generate(model: nn.Module, n_tokens: int = 5) -> None:
    """A hand-written loop: work before it, the model, and the choice of the token after it."""
    x = torch.exp(torch.ones(1, 2))
    for _ in range(n_tokens):
        x = torch.sigmoid(model(x))


@pytest.mark.parametrize(("token_range", "n"), [([1, 2], 2), ([0, 0], 1), ([3, 9], 2), ([7, 9], 0)])
@pytest.mark.parametrize("as_list", [False, True])
def test_only_the_tokens_of_the_range_are_collected(tmp_path, token_range, n, as_list):
    model = Step()
    debugger = make_debugger(tmp_path, level="mix", task="statistics")
    debugger.start([model, Step()] if as_list else model, token_range=token_range)
    _generate(model)
    debugger.step()
    assert not model._forward_pre_hooks
    module = "Module.0.fc.Linear" if as_list else "Module.fc.Linear"
    expected = [
        name
        for call in range(n)
        for name in (
            f"Functional.linear.{call}.forward",
            f"{module}.forward.{call}",
            f"Torch.tanh.{call}.forward",
            f"Torch.sigmoid.{call}.forward",
        )
    ]
    assert list(read_dump(tmp_path).data) == expected


def test_the_prompt_is_token_0_of_generate(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=20
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    prompt = torch.tensor([[1, 2, 3]])
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(prompt, **options)
    shapes = {}
    for number, token_range in enumerate(([0, 0], [1, 2])):
        debugger = make_debugger(tmp_path / str(number), level="L0", task="statistics")
        debugger.start(model, token_range=token_range)
        assert torch.equal(model.generate(prompt, **options), plain)
        debugger.step()
        dump = read_dump(tmp_path / str(number))
        names = dump.names("Module.model.embed_tokens.Embedding.forward")
        shapes[number] = [dump[name]["input_args"][0]["shape"] for name in names]
    assert shapes == {0: [[1, 3]], 1: [[1, 1], [1, 1]]}


@pytest.mark.parametrize(
    ("token_range", "said"),
    [
        (3, "token_range 3 is not a pair"),
        ([1], "not a pair of integers"),
        ([0, 1.5], "not a pair of integers"),
        ([2, 1], r"token_range \[2, 1\] contains no token"),
        ([-1, 1], r"token_range \[-1, 1\] contains no token"),
    ],
)
def test_a_wrong_range_is_reported_in_a_sentence(tmp_path, token_range, said):
    debugger = make_debugger(tmp_path, level="L1", task="statistics")
    with pytest.raises(UsageError, match=said):
        debugger.start(Step(), token_range=token_range)
    with pytest.raises(UsageError, match="a model for token_range"):
        debugger.start(token_range=[0, 1])


def _with_request(tmp_path, request_id: str, **section):
    debugger = make_debugger(tmp_path, level="L1")
    debugger.close()
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["tensor"] = {"request_id": request_id, **section}
    path.write_text(json.dumps(config))
    return type(debugger)(config_path=str(path), level="L1")


def test_one_request_of_a_batch(tmp_path):
    debugger = _with_request(tmp_path, "b")
    batch = torch.arange(10.0).reshape(5, 2)
    debugger.start(scheduled_tokens={"a": 3, "b": 2})
    torch.square(batch)
    torch.square(batch[0])  # another size: not sliced
    debugger.step()
    dump = read_dump(tmp_path)
    assert dump.tensors("Torch.square.0.forward", "output")[0].tolist() == [[36, 49], [64, 81]]
    assert dump.tensors("Torch.square.1.forward", "output")[0].tolist() == [0, 1]


def test_a_batch_without_the_request_is_not_collected_and_the_next_one_is(tmp_path):
    debugger = _with_request(tmp_path, "b")
    debugger.start(scheduled_tokens={"a": 3})
    torch.ones(3).square()
    debugger.stop()
    debugger.start(scheduled_tokens={"b": 1, "a": 2})
    torch.arange(3.0).square()
    debugger.stop()
    debugger.start()  # nothing is said of requests: everything
    torch.arange(3.0).square()
    debugger.step()
    dump = read_dump(tmp_path)
    found = [dump.tensors(name, "output")[0].tolist() for name in dump.names("square")]
    assert found == [[0], [0, 1, 4]]


@pytest.mark.parametrize("scheduled", [[("a", 3)], {"a": 0}, {"a": 1.5}, {3: 3}])
def test_wrong_scheduled_tokens_are_reported_in_a_sentence(tmp_path, scheduled):
    debugger = _with_request(tmp_path, "b")
    with pytest.raises(UsageError, match="scheduled_tokens"):
        debugger.start(scheduled_tokens=scheduled)
