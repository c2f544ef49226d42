"""Expressions of the workspace table: arithmetic, and nothing else."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.memory.workspace.expression import NotANumber, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("b * h * round_up(sq, 128) * 4", 2 * 3 * 256 * 4),
        ("ceil_div(sq, 64) + min(b, h) - max(b, h, 1)", 3 + 2 - 3),
        ("7 // 2 + 7 % 2 + 7 / 2", 3 + 1 + 3.5),
        ("10 if sq > 100 else 20", 10),
        ("1 < b < h and not h == 4", True),
        ("b == 9 or h == 3", True),
        ("-b + 5", 3),
        ("0 if b else 1 // 0", 0),
    ],
)
def test_an_expression_has_its_value(text, value):
    assert parse(text).value({"b": 2, "h": 3, "sq": 130}) == value


def test_names_are_known_before_there_are_values():
    assert parse("b * h if is_causal else round_up(d, 32)").names == {"b", "h", "is_causal", "d"}


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "b.real", "b[0]", "[b for b in (1, 2)]", "lambda: 1", "'text'", "2 ** 9", "1 << 9",
        "abs(b)", "min(b)", "round_up(b)", "min(*b)", "min(b, key=h)", "f'{b}'", "b := 3", "b in h", "None", "1j", "",
        "b; h", "a" * 2000, "(" * 300 + "1" + ")" * 300, "-" * 900 + "1", "1" + "0" * 40,
    ],
)  # fmt: skip
def test_what_is_not_arithmetic_is_refused_when_it_is_read(text):
    with pytest.raises(NotANumber):
        parse(text)


def test_what_has_no_value_is_reported():
    with pytest.raises(NotANumber, match="divides by zero"):
        parse("b // (h - 3)").value({"b": 2, "h": 3})
    with pytest.raises(NotANumber, match="has no 'sq'"):
        parse("sq * 2").value({"b": 2})
    with pytest.raises(NotANumber, match="larger than any memory"):
        parse("b * b * b").value({"b": 1 << 40})


@given(st.integers(0, 1 << 30), st.integers(1, 1 << 12))
def test_rounding_is_exact(n, unit):
    dimensions = {"n": n, "unit": unit}
    assert parse("ceil_div(n, unit)").value(dimensions) == math.ceil(n / unit)
    rounded = parse("round_up(n, unit)").value(dimensions)
    assert rounded % unit == 0
    assert n <= rounded < n + unit
