"""One rank against the several that share its work: tensor, pipeline and data parallel, put together before comparing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.probe.dumps import Call, write_dump
from windtunnel.probe.compare.comparison import compare_dumps
from windtunnel.probe.compare.first_divergence import Findings
from windtunnel.probe.compare.tolerance import Tolerance

DRAW = np.random.default_rng(1)
X = DRAW.standard_normal((6, 8)).astype(np.float32)
W1, W2 = (DRAW.standard_normal(shape).astype(np.float32) for shape in ((16, 8), (8, 16)))
BIAS = DRAW.standard_normal(16).astype(np.float32)


def compare(a, b, **tolerance):
    findings = Findings()
    for found in compare_dumps(a, b, Tolerance(**tolerance)):
        findings.add(found)
    return findings


def layer(x, w1, bias, w2, reduce=None, name="mlp"):
    """x + fc2(relu(fc1(x))), as the calls of one rank; `reduce` makes the partial result whole."""
    h = x @ w1.T + bias
    r = np.maximum(h, 0)
    partial = r @ w2.T
    calls = [
        Call(f"Module.{name}.fc1.Linear.forward.0", [x], [h], {"weight": w1, "bias": bias}),
        Call("Functional.relu.0.forward", [h], [r]),
        Call("Functional.linear.1.forward", [r, w2], [partial]),
    ]
    whole = partial
    if reduce is not None:
        whole = reduce(partial)
        calls.append(Call("Distributed.all_reduce.0.forward", [partial], [whole]))
    calls.append(Call(f"Module.{name}.fc2.Linear.forward.0", [r], [whole], {"weight": w2}))
    calls.append(Call("Tensor.__add__.0.forward", [x, whole], [x + whole]))
    return calls


def halves(x=X, w1=W1, bias=BIAS, w2=W2, reduces=True):
    """The same layer on two tensor-parallel ranks."""
    h = [np.maximum(x @ w1[s].T + bias[s], 0) @ w2[:, s].T for s in (slice(0, 8), slice(8, 16))]
    reduce = (lambda partial: h[0] + h[1]) if reduces else None
    return [layer(x, w1[s], bias[s], w2[:, s], reduce) for s in (slice(0, 8), slice(8, 16))]


def write_ranks(root, ranks, **options):
    for rank, calls in enumerate(ranks):
        write_dump(root / "step0" / f"rank{rank}", calls, **options)
    return root


@pytest.mark.parametrize("files", [False, True])
def test_two_tensor_parallel_ranks_equal_one(tmp_path, files):
    a = write_ranks(tmp_path / "a", [layer(X, W1, BIAS, W2)], files=files)
    b = write_ranks(tmp_path / "b", halves(), files=files)
    for one, two in ((a, b), (b, a)):
        findings = compare(one, two)
        assert findings.first is None
        assert findings.n_compared == 15
        assert findings.n_nothing == 0
        assert any("2 ranks of" in note for note in findings.notes)
    assert (findings.only_a, findings.only_b) == (1, 0)  # the all-reduce, which one rank does not need


def test_calls_that_only_the_divided_side_makes_are_no_difference(tmp_path):
    a = write_ranks(tmp_path / "a", [layer(X, W1, BIAS, W2)])
    ranks = [[Call("Function.Copy.0.forward", [X], [X]), *calls] for calls in halves()]
    findings = compare(a, write_ranks(tmp_path / "b", ranks))
    assert (findings.first, findings.only_b) == (None, 2)


def test_without_sketches_partial_sums_cannot_be_compared_and_the_next_value_can(tmp_path):
    a = write_ranks(tmp_path / "a", [layer(X, W1, BIAS, W2)], sketch=False, ours=False)
    b = write_ranks(tmp_path / "b", halves(), sketch=False, ours=False)
    findings = compare(a, b)
    assert findings.first is None
    assert findings.n_nothing == 1  # Functional.linear.1.forward.output.0
    wrong = halves(w2=W2 * np.float32(1.01))
    assert compare(a, write_ranks(tmp_path / "c", wrong, sketch=False, ours=False)).first is not None


@pytest.mark.parametrize("files", [False, True])
def test_a_missing_all_reduce_is_found_where_the_partial_sum_is_used(tmp_path, files):
    a = write_ranks(tmp_path / "a", [layer(X, W1, BIAS, W2)], files=files)
    b = write_ranks(tmp_path / "b", halves(reduces=False), files=files)
    first = compare(a, b).first
    assert first.item == "Tensor.__add__.0.forward.output.0"
    assert "missing all-reduce" in " ".join(first.sentences)


def test_a_missing_all_reduce_between_equal_sizes_is_a_missing_call(tmp_path):
    a = write_ranks(tmp_path / "a", halves())
    b = write_ranks(tmp_path / "b", halves(reduces=False))
    findings = compare(a, b)
    assert (findings.first.item, findings.first.rank) == ("Distributed.all_reduce.0.forward", 0)
    assert findings.n_parted == 2


@pytest.mark.parametrize("files", [False, True])
def test_shards_in_the_wrong_order_are_found_where_their_order_shows(tmp_path, files):
    a = write_ranks(tmp_path / "a", [layer(X, W1, BIAS, W2)], files=files)
    swapped = np.concatenate([W2[:, 8:], W2[:, :8]], axis=1)  # each rank has the other's half of W2
    b = write_ranks(tmp_path / "b", halves(w2=swapped), files=files)
    assert compare(a, b).first.item == "Functional.linear.1.forward.output.0"


def test_a_rank_that_has_another_copy_is_named(tmp_path):
    ranks = halves()
    ranks[1][0].inputs[0] = X * np.float32(1.5)
    a = write_ranks(tmp_path / "a", [layer(X, W1, BIAS, W2)])
    first = compare(a, write_ranks(tmp_path / "b", ranks)).first
    assert first.item == "Module.mlp.fc1.Linear.forward.0.input.0"
    assert "one of the 2 ranks agrees" in " ".join(first.sentences)


def test_a_wrong_shard_is_found_at_the_parameter(tmp_path):
    wrong = W1.copy()
    wrong[12] *= 3
    a = write_ranks(tmp_path / "a", [layer(X, W1, BIAS, W2)])
    first = compare(a, write_ranks(tmp_path / "b", halves(w1=wrong))).first
    assert first.item == "Module.mlp.fc1.Linear.forward.0.parameters.weight"
    assert "along dimension 0" in " ".join(first.sentences)


def test_pipeline_stages_are_the_union_of_their_modules(tmp_path):
    forward = [Call(f"Module.layers.{i}.Linear.forward.0", [X * i], [X * (i + 1)]) for i in range(4)]
    backward = [
        Call(f"Module.layers.{i}.Linear.backward.0", [X * (i + 1)], [X * i]) for i in reversed(range(4))
    ]
    update = [Call(f"Tensor.add_.{i}.forward", [X], [X * (i + 2)]) for i in range(4)]
    a = write_ranks(tmp_path / "a", [[*forward, *backward, *update]], level="L0")
    stages = [[*forward[:2], *backward[2:]], [*forward[2:], *backward[:2]]]
    b = write_ranks(tmp_path / "b", stages, level="L0")
    findings = compare(a, b)
    assert findings.only_b == 0
    assert findings.only_a == len(update)
    stages[1][2].outputs[0] = X * 7
    first = compare(a, write_ranks(tmp_path / "c", stages, level="L0")).first
    assert first.item == "Module.layers.3.Linear.backward.0.output.0"
    assert first.place == 4


@pytest.mark.parametrize("files", [False, True])
def test_data_parallel_ranks_hold_parts_of_the_batch_and_contributions_to_gradients(tmp_path, files):
    def run(x, n):
        y = x @ W1.T
        g = (y / len(x)).astype(np.float32)
        return [
            Call("Module.fc.Linear.forward.0", [x], [y], {"weight": W1}),
            Call("Module.fc.Linear.parameters_grad.0", parameters={"weight": g.T @ x}),
        ]

    a = write_ranks(tmp_path / "a", [run(X, 1)], level="L0", files=files)
    b = write_ranks(tmp_path / "b", [run(X[:3], 2), run(X[3:], 2)], level="L0", files=files)
    findings = compare(a, b)
    assert findings.first is None
    assert findings.n_compared == 4


@pytest.mark.parametrize("files", [False, True])
def test_more_ranks_than_parts_are_copies_of_the_first(tmp_path, files):
    a = write_ranks(tmp_path / "a", [layer(X, W1, BIAS, W2)], files=files)
    b = write_ranks(tmp_path / "b", [*halves(), *halves()], files=files)
    findings = compare(a, b)
    assert (findings.first, findings.n_compared, findings.n_nothing) == (None, 15, 0)


def test_shapes_that_do_not_add_up_are_reported(tmp_path):
    a = write_ranks(tmp_path / "a", [layer(X, W1, BIAS, W2)])
    ranks = halves()
    ranks[1][0].parameters["weight"] = W1[8:13]
    first = compare(a, write_ranks(tmp_path / "b", ranks)).first
    assert (first.item, first.kind) == ("Module.mlp.fc1.Linear.forward.0.parameters.weight", "shape")
    assert "do not combine" in " ".join(first.sentences)
