"""What is rounding and what is more, and what is said about the first difference. On dumps made by hand."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from tests.probe.dumps import Call, write_dump
from windtunnel.probe.compare.comparison import compare_dumps
from windtunnel.probe.compare.first_divergence import Findings
from windtunnel.probe.compare.tensor_errors import compare_arrays
from windtunnel.probe.compare.tolerance import Tolerance, type_eps

DRAW = np.random.default_rng(3)
X = DRAW.standard_normal((64, 32)).astype(np.float32)
NOISE = DRAW.standard_normal((64, 32)).astype(np.float32)


def compare(tmp_path, calls_a, calls_b, options_b=None, tolerance=None, **options) -> Findings:
    a = write_dump(tmp_path / "a", calls_a, **options)
    b = write_dump(tmp_path / "b", calls_b, **options | (options_b or {}))
    findings = Findings()
    for found in compare_dumps(a, b, tolerance or Tolerance()):
        findings.add(found)
    return findings


def chain(*values):
    """Each call takes what the one before returned."""
    return [Call(f"Torch.op{i}.0.forward", [x], [y]) for i, (x, y) in enumerate(pairwise(values))]


def off(value, relative):
    """The value with random noise of that relative size."""
    return (value + NOISE * np.float32(relative)).astype(value.dtype)


@pytest.mark.parametrize("sketch", [True, False])
def test_one_operation_may_round_and_no_more(tmp_path, sketch):
    good = chain(X, X * 2, X * 3)
    assert compare(tmp_path, good, chain(X, off(X * 2, 2e-7), off(X * 3, 2e-7)), sketch=sketch).first is None
    first = compare(tmp_path, good, chain(X, off(X * 2, 1e-3), off(X * 3, 1e-3)), sketch=sketch).first
    assert first.item == "Torch.op0.0.forward.output.0"
    assert first.inputs == "equal"


def test_noise_may_grow_from_call_to_call_but_not_jump(tmp_path):
    values = [X * k for k in range(1, 8)]
    grown = [off(value, 3.0**k * 1e-7) for k, value in enumerate(values)]
    assert compare(tmp_path, chain(*values), chain(X, *grown[1:])).first is None
    jumped = [*grown[:4], *(off(value, 1e-3) for value in values[4:])]
    first = compare(tmp_path, chain(*values), chain(X, *jumped[1:])).first
    assert first.item == "Torch.op3.0.forward.output.0"
    assert first.inputs == "rounding"
    assert "amplifies the difference" in first.sentences[-1]


@pytest.mark.parametrize(("dtype", "rounding", "more"), [("float16", 3e-4, 5e-2), ("float64", 1e-9, 1e-6)])
def test_the_limit_follows_the_type(tmp_path, dtype, rounding, more):
    x, y = X.astype(dtype), (X * 2).astype(dtype)
    near, far = ((y + NOISE.astype(dtype) * each).astype(dtype) for each in (rounding, more))
    assert compare(tmp_path, chain(x, y), chain(x, near)).first is None
    assert compare(tmp_path, chain(x, y), chain(x, far)).first is not None


def test_integers_have_to_be_equal(tmp_path):
    ids = np.arange(100)
    first = compare(tmp_path, chain(ids, ids), chain(ids, np.where(ids == 7, 8, ids))).first
    assert first.item == "Torch.op0.0.forward.output.0"


def test_arguments_have_to_be_equal(tmp_path):
    a, b = (
        [Call("Functional.dropout.0.forward", [X, p, flag, [{"type": "str", "value": mode}]], [X])]
        for p, flag, mode in ((0.1, True, "x"), (0.1, False, "y"))
    )
    first = compare(tmp_path, a, b).first
    assert first.item == "Functional.dropout.0.forward.input.2"
    assert first.sentences[0] == "the argument is 1 in A and 0 in B"


def test_an_argument_is_never_taken_for_noise(tmp_path):
    a, b = ([Call("Functional.layer_norm.0.forward", [X, 512, eps], [X * 3])] for eps in (1e-5, 1e-3))
    first = compare(tmp_path, a, b).first
    assert first.item == "Functional.layer_norm.0.forward.input.2"


def test_nan_equals_nan_and_nothing_else(tmp_path):
    nan = X.copy()
    nan[0, 0] = np.nan
    two = nan.copy()
    two[1, 1] = np.nan
    assert compare(tmp_path, chain(X, nan), chain(X, nan.copy())).first is None
    first = compare(tmp_path, chain(X, nan), chain(X, two)).first
    assert first.kind == "non-finite"
    assert first.sentences[0] == "A has 1 NaN, B has 2 NaN"
    other = nan.copy()
    other[3:] *= 2
    assert (
        compare(tmp_path, chain(X, nan), chain(X, other)).first.kind == "value"
    )  # the sketch leaves the NaN out


def test_infinity_equals_infinity_of_the_same_sign(tmp_path):
    up, down = X.copy(), X.copy()
    up[0, 0], down[0, 0] = np.inf, -np.inf
    assert compare(tmp_path, chain(X, up), chain(X, up.copy())).first is None
    assert compare(tmp_path, chain(X, up), chain(X, down)).first.kind == "non-finite"


@pytest.mark.parametrize("sketch", [True, False])
def test_a_sum_that_should_be_zero_says_nothing(tmp_path, sketch):
    """The gradient of a bias before a normalisation: 1e-9 of either sign, here and where it is used."""
    zero = (DRAW.standard_normal(32) * 1e-7).astype(np.float32)
    weight = DRAW.standard_normal(32).astype(np.float32)

    def run(gradient):
        return [
            Call("Functional.conv2d.0.backward", [X], [X, gradient]),
            Call("Tensor.mul_.0.forward", [gradient, 0.5], [gradient * np.float32(0.5)]),
            Call("Tensor.add_.0.forward", [weight, gradient * np.float32(0.5)], [weight]),
        ]

    assert compare(tmp_path, run(zero), run(-zero[::-1].copy()), sketch=sketch).first is None
    large = (zero * 1e4).astype(np.float32)
    assert compare(tmp_path, run(large), run(-large[::-1].copy()), sketch=sketch).first is not None


def test_what_is_harmless_in_one_call_is_not_forgiven_in_another(tmp_path):
    small = X * np.float32(1e-9)

    def run(value):
        return [
            Call("Torch.f.0.forward", [X], [value]),
            Call("Tensor.add.0.forward", [X, value], [X]),  # too small to matter here
        ]

    assert (
        compare(tmp_path, run(small), run(small * np.float32(1.5))).first.item == "Torch.f.0.forward.output.0"
    )
    outside = [
        [Call("Tensor.add.0.forward", [X, v], [X]), Call("Torch.f.0.forward", [v], [v])]
        for v in (small, -small)
    ]
    assert compare(tmp_path, *outside).first.item == "Torch.f.0.forward.input.0"


def test_adam_makes_a_step_of_noise_and_is_not_blamed(tmp_path):
    """A part of a fused bias has gradients that are nothing but rounding; divided by their own size they are not small."""
    n = 384
    size = np.where(np.arange(n) < 128, 1e-9, 1e-3).astype(np.float32)
    mean = (DRAW.standard_normal(n) * size).astype(np.float32)
    other = mean + np.where(np.arange(n) < 128, 5e-10, 0).astype(np.float32)
    weight = (DRAW.standard_normal(n) * 1e-2).astype(np.float32)

    def run(mean, factor=1.0):
        root = np.abs(mean) + np.float32(1e-8)
        step = weight - np.float32(1e-3 * factor) * mean / root
        return [
            Call("Tensor.add_.0.forward", [np.abs(mean), 1e-8], [root]),
            Call(
                "Tensor.addcdiv_.0.forward",
                [weight, mean, root],
                [step],
                line="File opt.py, line 1, in f, \n f()",
            ),
            Call("Functional.linear.0.forward", [X, step], [X]),
        ]

    findings = compare(tmp_path, run(mean), run(other))
    assert findings.first is None
    assert findings.n_noise >= 2
    assert compare(tmp_path, run(mean), run(mean, 1.01)).first.item == "Tensor.addcdiv_.0.forward.output.0"


def test_a_parameter_whose_gradient_was_noise_may_differ_in_the_next_step(tmp_path):
    noise = [(DRAW.standard_normal(32) * 1e-9).astype(np.float32) for _ in range(2)]
    weight = DRAW.standard_normal((32, 32)).astype(np.float32)
    name = "Module.key.Linear"

    def step(root, bias, gradient, weight_gradient=weight):
        out = X @ weight + bias
        calls = [
            Call(f"{name}.forward.0", [X], [out], {"weight": weight, "bias": bias}),
            Call(f"{name}.parameters_grad.0", parameters={"weight": weight_gradient, "bias": gradient}),
        ]
        write_dump(root / "rank0", calls, level="L0")

    zero = np.zeros(32, np.float32)
    for side, gradient in zip("ab", noise, strict=True):
        step(tmp_path / side / "step0", zero, gradient)
        step(
            tmp_path / side / "step1", np.sign(gradient) * np.float32(1e-3), gradient
        )  # what Adam makes of it
    findings = Findings()
    for found in compare_dumps(tmp_path / "a", tmp_path / "b", Tolerance()):
        findings.add(found)
    assert findings.first is None
    step(tmp_path / "b" / "step0", zero, weight[0])  # a gradient that is something
    findings = Findings()
    for found in compare_dumps(tmp_path / "a", tmp_path / "b", Tolerance()):
        findings.add(found)
    assert findings.first.item == f"{name}.parameters_grad.0.bias"


def test_memory_that_nobody_wrote_is_not_compared(tmp_path):
    def run(buffer, scale=1.0):
        return [
            Call("Torch.empty.0.forward", [64, 32], [buffer]),
            Call("Tensor.copy_.0.forward", [buffer * 3, X], [X]),
            Call("Tensor.__setitem__.0.forward", [NOISE * np.float32(scale), 0, X], []),
        ]

    findings = compare(tmp_path, run(X), run(NOISE))
    assert (findings.first, findings.n_nothing) == (None, 2)
    # What an earlier call returned was written.
    a, b = ([Call("Torch.f.0.forward", [X], [v]), Call("Tensor.copy_.0.forward", [w, X], [X])]
            for v, w in ((X, X), (X, X * 2)))  # fmt: skip
    assert compare(tmp_path, a, b).first.item == "Tensor.copy_.0.forward.input.0"


def test_another_type_is_a_difference_unless_nearly_everything_has_it(tmp_path):
    values = [X * k for k in range(1, 8)]
    low = [value.astype(np.float16) for value in values]
    one = [*values[:3], low[3], *values[4:]]
    first = compare(tmp_path, chain(*values), chain(*one)).first
    assert (first.item, first.kind) == ("Torch.op2.0.forward.output.0", "dtype")
    findings = compare(tmp_path, chain(*values), chain(*low))
    assert findings.first is None
    assert "different types" in findings.notes[0]
    wrong = [*low[:5], (low[5] * np.float16(1.3)), *low[6:]]
    assert compare(tmp_path, chain(*values), chain(*wrong)).first.item == "Torch.op4.0.forward.output.0"


def test_a_factor_is_no_rounding_even_if_it_is_as_small(tmp_path):
    y = (X * 2).astype(np.float16)
    noisy = (y.astype(np.float32) * (1 + NOISE * 1e-3)).astype(np.float16)
    scaled = (noisy.astype(np.float32) * 1.006).astype(np.float16)
    x = X.astype(np.float16)
    z = (x.astype(np.float32) * (1 + NOISE * 1e-3)).astype(np.float16)
    assert compare(tmp_path, chain(x, y), chain(z, noisy)).first is None
    first = compare(tmp_path, chain(x, y), chain(z, scaled)).first
    assert first.item == "Torch.op0.0.forward.output.0"
    assert "times A" in first.sentences[0]


def test_shapes_are_reported(tmp_path):
    first = compare(tmp_path, chain(X, X), chain(X, X.T.copy())).first
    assert first.kind == "shape"
    assert first.sentences[0] == "its shape is [64, 32] in A and [32, 64] in B"


@pytest.mark.parametrize("options", [{"sketch": False, "crc": True}, {"files": True}, {}, {"crc": True}])
def test_rows_in_another_order_are_found_by_checksum_sketch_or_tensors(tmp_path, options):
    whole = (np.arange(2048, dtype=np.float32) % 13).reshape(
        64, 32
    )  # sums of small whole numbers do not round
    first = compare(tmp_path, chain(X, whole), chain(X, whole[::-1].copy()), **options).first
    assert first.item == "Torch.op0.0.forward.output.0"
    assert "order" in first.sentences[0]


def test_a_value_that_one_side_lacks_is_reported(tmp_path):
    a = [Call("Functional.linear.0.backward", [X], [X, X])]
    b = [Call("Functional.linear.0.backward", [X], [X, None])]
    first = compare(tmp_path, a, b).first
    assert (first.item, first.kind) == ("Functional.linear.0.backward.output.1", "only in A")
    assert first.sentences[0] == "A has a value here, B has none: no gradient reached it"


def test_the_maker_of_an_input_is_named(tmp_path):
    y = np.maximum(X, 0)
    a = [Call("Torch.f.0.forward", [X], [y]), Call("Torch.g.0.forward", [y], [y * 2])]
    b = [Call("Torch.f.0.forward", [X], [y]), Call("Torch.g.0.forward", [X + y], [(X + y) * 2])]
    sentence = compare(tmp_path, a, b).first.sentences[-1]
    assert "in A it is Torch.f.0.forward.output.0 unchanged" in sentence
    sentence = compare(tmp_path, b, a).first.sentences[-1]
    assert "in B it is Torch.f.0.forward.output.0 unchanged" in sentence


def test_the_line_is_the_innermost_of_the_users_own(tmp_path):
    findings = compare(tmp_path, chain(X, X), chain(X, X * 2))
    assert findings.first.line == "/home/me/train.py:7 in forward: y = f(x)"


def test_the_first_step_and_the_earliest_rank_win(tmp_path):
    good = chain(X, X * 2, X * 3, X * 4)
    bad = {
        ("step0", "rank0"): good,
        ("step0", "rank1"): chain(X, X * 2, X * 3, X * 5),
        ("step0", "rank2"): chain(X, X * 2, X * 9, X * 4),
        ("step1", "rank0"): chain(X, X * 7, X * 3, X * 4),
        ("step1", "rank1"): good,
        ("step1", "rank2"): good,
    }
    for (step, rank), calls in bad.items():
        write_dump(tmp_path / "a" / step / rank, good)
        write_dump(tmp_path / "b" / step / rank, calls)
    findings = Findings()
    for found in compare_dumps(tmp_path / "a", tmp_path / "b", Tolerance()):
        findings.add(found)
    assert (findings.first.step, findings.first.rank, findings.first.place) == (0, 2, 1)
    assert (findings.n_ranks, findings.n_parted) == (6, 3)


def test_a_run_that_was_cut_off_is_compared_up_to_there(tmp_path):
    calls = chain(*(X * k for k in range(1, 6)))
    write_dump(tmp_path / "a", calls)
    (tmp_path / "b").mkdir()
    document = json.loads((tmp_path / "a" / "dump.json").read_text())
    lines = [json.dumps(["header", "dump.json", {"level": "mix", "windtunnel": "0.1.0"}])]
    lines += [json.dumps(["entry", call.name, document["data"][call.name]]) for call in calls[:2]]
    (tmp_path / "b" / "journal.jsonl").write_text("\n".join(lines) + '\n["entry", "Torch.op2.0.fo')
    findings = Findings()
    for found in compare_dumps(tmp_path / "a", tmp_path / "b", Tolerance()):
        findings.add(found)
    assert findings.first is None
    assert (findings.n_equal, findings.only_a) == (4, 2)
    assert findings.notes == ["B is incomplete: its last entry is Torch.op1.0.forward"]


def test_one_dump_of_each_tool_is_compared_where_they_mean_the_same(tmp_path):
    a = [Call("Functional.linear.0.forward", [X], [X]), Call("Functional.linear.0.backward", [X], [X])]
    b = [*a[:1], Call("Functional.linear.0.backward", [X], [X * 5]), Call("Torch.extra.0.forward", [X], [X])]
    findings = compare(tmp_path, a, b, {"ours": False, "sketch": False, "indent": 1})
    assert findings.first is None
    assert findings.n_compared == 3
    assert "msProbe" in findings.notes[0]
    b[0] = Call("Functional.linear.0.forward", [X], [X * 1.5])
    assert compare(tmp_path, a, b, {"ours": False, "sketch": False}).first is not None


def test_elements_are_compared_as_msprobe_does():
    a, b = np.array([1.0, 2.0, 0.0, 4.0, 1.0]), np.array([1.0, 2.002, 0.0, 2.0, 0.0])
    found = compare_arrays(a, b)
    assert found.max_abs == 2.0
    assert found.max_relative == 1.0
    assert found.euclidean == pytest.approx(np.linalg.norm(a - b))
    assert found.relative_l2 == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(a))
    assert found.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert (found.one_thousandth, found.five_thousandths) == (3 / 5, 3 / 5)
    assert compare_arrays(a, b[:2]) is None
    nan = np.array([1.0, np.nan, np.inf])
    assert compare_arrays(nan, nan).relative_l2 == 0.0
    assert compare_arrays(nan, np.array([1.0, np.nan, -np.inf])).relative_l2 == np.inf


@pytest.mark.parametrize(
    ("name", "eps"), [("torch.float32", 2**-23), ("BFloat16", 2**-7), ("torch.int64", 0.0), ("str", 0.0)]
)
def test_types_of_both_frameworks_are_known(name, eps):
    assert type_eps(name) == eps
