"""Which experts tokens go to: counts that sum to all choices, distinct experts for each token, and what cannot be read."""

from __future__ import annotations

import json

import numpy as np
import pytest

from windtunnel.capture.routing import Routing, choose, counts_of, routing_of
from windtunnel.errors import UsageError

SIZES = [(4096, 16, 2), (8192, 128, 8), (1000, 7, 3), (5, 64, 6), (3, 8, 8), (1, 4, 1)]


@pytest.mark.parametrize("text", ["balanced", "zipf:1.2", "zipf", "worst"])
@pytest.mark.parametrize(("n_tokens", "n_experts", "n_chosen"), SIZES)
def test_every_token_chooses_distinct_experts_and_all_choices_are_counted(
    text, n_tokens, n_experts, n_chosen
):
    weights = routing_of(text).weights(n_experts, n_chosen, "", 0)
    chosen = choose(weights, n_tokens, n_chosen)
    assert chosen.shape == (n_tokens, n_chosen)
    assert all(len(set(row)) == n_chosen for row in chosen.tolist())
    counts = np.bincount(chosen.reshape(-1), minlength=n_experts)
    assert counts.size == n_experts
    assert counts.sum() == n_tokens * n_chosen
    if text == "balanced":
        assert counts.max() - counts.min() <= (n_tokens * n_chosen % n_experts != 0)
    else:
        assert counts.tolist() == counts_of(weights, n_tokens, n_chosen)


def test_a_slice_of_balanced_tokens_is_balanced():
    chosen = choose((1.0,) * 16, 4096, 2)
    assert np.bincount(chosen[1000:1128].reshape(-1)).tolist() == [16] * 16


def test_the_worst_routing_sends_every_token_to_the_first_experts():
    assert counts_of(routing_of("worst").weights(8, 2, "", 0), 100, 2) == [100, 100, 0, 0, 0, 0, 0, 0]


def test_zipf_is_proportional_and_no_expert_gets_a_token_twice():
    assert counts_of(routing_of("zipf:1").weights(4, 1, "", 0), 25, 1) == [12, 6, 4, 3]
    assert counts_of(routing_of("zipf:1").weights(4, 3, "", 0), 25, 3) == [25, 23, 15, 12]


def test_a_trace_is_scaled_layer_by_layer(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('{"layers": [[3, 1], [0, 5]]}')
    routing = routing_of(str(path))
    assert [counts_of(routing.weights(2, 1, "", i), 8, 1) for i in range(3)] == [[6, 2], [0, 8], [6, 2]]
    assert counts_of(routing.weights(2, 2, "", 1), 8, 2) == [8, 8]
    assert routing.weights(4, 1, "", 0) == (1.0,) * 4
    assert not routing.covers(4, "", 0)


def test_a_trace_may_name_modules_and_groups_of_experts_add_up(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('{"layers": {"model.layers.0.*": [1, 2, 3, 4]}}')
    routing = routing_of(str(path))
    assert routing.weights(4, 1, "model.layers.0.gate", 0) == (1.0, 2.0, 3.0, 4.0)
    assert routing.weights(2, 1, "model.layers.0.gate", 0) == (3.0, 7.0)
    assert not routing.covers(4, "model.layers.1.gate", 0)
    assert Routing.from_fields(json.loads(json.dumps(routing.as_fields()))) == routing


@pytest.mark.parametrize(
    ("text", "content", "sentence"),
    [
        ("even", None, "unknown routing 'even'"),
        ("zipf:much", None, "--routing zipf:much: 'much' is not an exponent between 0 and 10"),
        ("zipf:-1", None, "--routing zipf:-1: '-1' is not an exponent between 0 and 10"),
        ("none.json", None, "--routing none.json: there is no such file"),
        ("t.json", "[", "--routing t.json cannot be read: Expecting value: line 1 column 2 (char 1)"),
        ("t.json", "[1]", '--routing t.json has no "layers" with the tokens of each expert'),
        (
            "t.json",
            '{"layers": [[1, -1]]}',
            "--routing t.json: layer 0 is not a list of tokens per expert, none below 0 and not all 0",
        ),
        (
            "t.json",
            '{"layers": {"a": [0, 0]}}',
            "--routing t.json: layer a is not a list of tokens per expert, none below 0 and not all 0",
        ),
    ],
)
def test_what_cannot_be_read_is_one_sentence(text, content, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / text).write_text(content)
    with pytest.raises(UsageError) as error:
        routing_of(text)
    assert error.value.message == sentence
    assert error.value.hint
