"""How closely figures have to agree: digits where the bits are the same, roundings where they are not, mistakes nowhere."""

from __future__ import annotations

import pytest

from tests.likeness import likeness

GRADIENT = ["Float32", [4, 4], {"Max": 0.5, "Min": -0.5, "Mean": 1e-3, "Norm": 1.0}]
NOTHING_BUT_ROUNDING = ["Float32", [4], {"Max": 1.4e-9, "Min": -1.9e-9, "Mean": -4.7e-10, "Norm": 2.7e-9}]
COUNT = ["int64", [2], {"Max": 2_000_000, "Min": 0, "Mean": None, "Norm": None}]
ENTRY = {"weight.0": GRADIENT, "bias.0": NOTHING_BUT_ROUNDING, "n": 3, "nothing": None}
HERE, ELSEWHERE = likeness(True).within(ENTRY), likeness(False).within(ENTRY)


@pytest.mark.parametrize(
    ("key", "value", "figure", "here", "elsewhere"),
    [
        ("Max", GRADIENT, 0.5, True, True),
        ("Max", GRADIENT, 0.5 * (1 + 5e-7), True, True),
        ("Max", GRADIENT, 0.5 * (1 + 5e-6), False, True),
        ("Max", GRADIENT, 0.5 * (1 + 5e-5), False, False),
        ("Mean", GRADIENT, 1e-3 + 2e-7, True, True),  # of numbers near 0.25
        ("Mean", GRADIENT, 1e-3 + 2e-6, False, True),
        ("Mean", GRADIENT, 1e-3 + 5e-6, False, False),
        ("Max", NOTHING_BUT_ROUNDING, 5.8e-10, False, True),
        ("Max", NOTHING_BUT_ROUNDING, 1e-5, False, False),
        ("Max", COUNT, 2_000_000, True, True),
        ("Max", COUNT, 2_000_010, False, False),
        ("Norm", COUNT, 1.0, False, False),
        ("Norm", GRADIENT, None, False, False),
        ("Max", GRADIENT, float("nan"), False, False),
    ],
)
def test_what_is_accepted(key, value, figure, here, elsewhere):
    assert (HERE.accepts(key, value, figure), ELSEWHERE.accepts(key, value, figure)) == (here, elsewhere)


def test_a_program_that_amplifies_its_roundings_may_differ_by_more():
    far = 0.5 * (1 + 5e-4)
    assert not ELSEWHERE.accepts("Max", GRADIENT, far)
    assert likeness(False, amplifies=100).accepts("Max", GRADIENT, far)
    assert not likeness(True, amplifies=100).accepts("Max", GRADIENT, far)


def test_nan_is_like_nan():
    value = ["float32", [], {"Max": float("nan")}]
    assert HERE.accepts("Max", value, float("nan"))
    assert not ELSEWHERE.accepts("Max", value, 1.0)
