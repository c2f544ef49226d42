"""Pairing entries: by name, past extra calls, past renamed modules, in another order."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.probe.dumps import Call, write_dump
from windtunnel.probe.compare.pairing import match_columns
from windtunnel.probe.compare.sequence_alignment import align
from windtunnel.probe.compare.step_reader import read_part
from windtunnel.probe.compare.steps_and_ranks import find_parts
from windtunnel.probe.compare.value_columns import Vocabulary
from windtunnel.probe.files.entry_name import parse_entry_name

RANDOM = np.random.default_rng(0)


def value(*shape):
    return RANDOM.standard_normal(shape or (4, 4)).astype(np.float32)


def pairs_of(tmp_path, calls_a, calls_b, **options):
    words = Vocabulary()
    data = [
        read_part(find_parts(write_dump(tmp_path / side, calls))[0], words)
        for side, calls in (("a", calls_a), ("b", calls_b))
    ]
    a, b = (each.columns for each in data)
    match = match_columns(a, b, (data[0].parents, data[1].parents), **options)
    names = [
        (a.entries[i] if i >= 0 else None, b.entries[j] if j >= 0 else None)
        for i, j in zip(match.entry_a, match.entry_b, strict=True)
    ]
    return names, match


def relus(values):
    return [Call(f"Functional.relu.{i}.forward", [x], [np.maximum(x, 0)]) for i, x in enumerate(values)]


@pytest.mark.parametrize("at", [0, 3, 9])
def test_an_extra_call_of_the_same_api_shifts_nothing(tmp_path, at):
    values = [value() for _ in range(9)]
    names, _ = pairs_of(tmp_path, relus(values), relus([*values[:at], value(), *values[at:]]))
    alone = [pair for pair in names if None in pair]
    assert alone == [(None, f"Functional.relu.{at}.forward")]
    assert names.index(alone[0]) == at


def test_an_extra_call_is_found_even_when_all_values_differ_after_it(tmp_path):
    values = [value() for _ in range(9)]
    others = [value() for _ in range(5)]
    names, _ = pairs_of(tmp_path, relus(values), relus([*values[:4], *others, value()]))
    assert names[:4] == [(name, name) for name, _ in names[:4]]
    assert sum(None in pair for pair in names) == 1
    assert names[4][0] is None  # the first one that is unlike everything: what follows is paired in order


def test_one_api_in_place_of_another_is_two_lone_calls_at_that_place(tmp_path):
    x = [value() for _ in range(5)]
    a = relus(x)
    b = [*a[:2], Call("Functional.gelu.0.forward", [x[2]], [value()]), *relus(x)[3:]]
    b = [
        Call(f"Functional.relu.{i - (i > 2)}.forward", c.inputs, c.outputs) if i != 2 else c
        for i, c in enumerate(b)
    ]
    names, _ = pairs_of(tmp_path, a, b)
    assert names[2:4] == [("Functional.relu.2.forward", None), (None, "Functional.gelu.0.forward")]
    assert names[4] == ("Functional.relu.3.forward", "Functional.relu.2.forward")


def model(prefix, names, values, classes=None):
    calls = []
    for i, x in enumerate(values):
        for name, cls in zip(names, classes or ["Linear"] * len(names), strict=True):
            calls.append(
                Call(f"Module.{prefix}.{i}.{name}.{cls}.forward.0", [x], [x * 2], {"weight": value(4, 4)})
            )
    for call in reversed(list(calls)):
        calls.append(Call(call.name.replace("forward", "backward"), call.outputs, call.inputs))
    return calls


def test_renamed_modules_are_paired_by_structure(tmp_path):
    x, y = [value() for _ in range(4)], [value() for _ in range(4)]  # no value in common
    a, b = model("layers", ["q", "k"], x), model("module.blocks", ["query", "key"], y)
    names, match = pairs_of(tmp_path, a, b)
    assert names == [(p.name, q.name) for p, q in zip(a, b, strict=True)]
    assert match.n_renamed == len(a)
    assert (match.row_a >= 0).all()
    assert (match.row_b >= 0).all()


def test_a_module_that_only_one_side_has_leaves_the_renamed_ones_paired(tmp_path):
    x = [value() for _ in range(4)]
    a = model("layers", ["q", "k"], x)
    b = model("blocks", ["query", "norm", "key"], x, ["Linear", "LayerNorm", "Linear"])
    names, match = pairs_of(tmp_path, a, b)
    assert {name for pair in names if None in pair for name in pair if name} == {
        call.name for call in b if "norm" in call.name
    }
    assert match.n_renamed == len(a)


def test_branches_in_another_order_are_paired_by_name(tmp_path):
    calls = [Call(f"Torch.op{i}.0.forward", [value()], [value()]) for i in range(6)]
    names, _ = pairs_of(tmp_path, calls, [calls[i] for i in (0, 2, 1, 3, 5, 4)])
    assert len(names) == 6
    assert all(p == q for p, q in names)


def test_values_are_paired_by_their_place_in_the_call(tmp_path):
    x = value()
    a = [Call("Torch.f.0.forward", [x, None, x], [x])]
    b = [Call("Torch.f.0.forward", [x, x, x], [])]
    _, match = pairs_of(tmp_path, a, b)
    assert list(zip(match.row_a.tolist(), match.row_b.tolist(), strict=True)) == [
        (0, 0),
        (-1, 1),
        (1, 2),
        (2, -1),
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 5), max_size=30))
def test_an_alignment_rises_on_both_sides_and_pairs_equal_codes(a, b):
    one, two = np.array(a, dtype=np.int64), np.array(b, dtype=np.int64)
    pairs = align([one * 10, one], [two * 10, two])
    assert all(p < q and r < s for (p, r), (q, s) in pairwise(pairs))
    assert all(a[i] == b[j] for i, j in pairs)
    if a == b:
        assert len(pairs) == len(a)


def test_a_long_sequence_with_scattered_changes_is_aligned_in_little_time():
    draw = random.Random(0)
    a = [draw.randrange(40) for _ in range(20_000)]
    b, kept = [], []
    for i, code in enumerate(a):
        if draw.random() < 0.002:
            continue
        if draw.random() < 0.002:
            b.append(draw.randrange(40))
        kept.append((i, len(b)))
        b.append(code)
    found = set(align([np.array(a)], [np.array(b)]))
    assert len(found & set(kept)) > 0.99 * len(kept)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("Module.layers.0.fc.Linear.forward.2", ("Module", "layers.0.fc", "Linear", "forward", 2)),
        ("Module.fc.Linear.parameters_grad.1", ("Module", "fc", "Linear", "parameters_grad", 1)),
        ("Cell.conv1.Conv2d.backward.0", ("Cell", "conv1", "Conv2d", "backward", 0)),
        ("Functional.linear.7.backward", ("Functional", "linear", "", "backward", 7)),
        ("Primitive.conv2d.Conv2D.0.forward", ("Primitive", "conv2d.Conv2D", "", "forward", 0)),
        ("hidden_grad.0.debug", ("", "hidden_grad", "", "debug", 0)),
        ("whatever", ("", "whatever", "", "forward", 0)),
    ],
)
def test_a_name_is_taken_apart(name, parts):
    found = parse_entry_name(name)
    assert (found.prefix, found.path, found.class_name, found.direction, found.call) == parts
