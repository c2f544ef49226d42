"""Ranks and steps: the grammar against a plain set, and huge ranges at no cost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.probe.config.number_sets import LARGEST, NumberSet, read_numbers

numbers = st.integers(0, 60)
ranges = st.tuples(numbers, numbers).map(sorted)
elements = st.one_of(
    numbers.map(lambda n: (n, {n})),
    numbers.map(lambda n: (str(n), {n})),
    numbers.map(lambda n: (f" {n:03d} ", {n})),
    ranges.map(lambda r: (f"{r[0]}-{r[1]}", set(range(r[0], r[1] + 1)))),
    ranges.map(lambda r: (f"{r[0]} - {r[1]}", set(range(r[0], r[1] + 1)))),
)


@settings(deadline=None)  # a busy machine is no mistake
@given(st.lists(elements, min_size=1))
def test_a_list_stands_for_the_union_of_its_elements(listed):
    expected = set().union(*(members for _, members in listed))
    found = read_numbers([text for text, _ in listed])
    assert [*found] == sorted(expected)
    assert (len(found), found.first, found.last) == (len(expected), min(expected), max(expected))
    assert {n for n in range(-2, 65) if n in found} == expected
    for first in range(0, 62, 7):
        assert found.overlaps(first, first + 4) == bool(expected & set(range(first, first + 5)))


@settings(deadline=None)  # a busy machine is no mistake
@given(st.lists(elements, min_size=1, max_size=8))
def test_what_is_shown_can_be_read_again(listed):
    found = read_numbers([text for text, _ in listed])
    shown = str(found)
    if "…" not in shown:
        assert read_numbers(shown.strip("[]").split(", ")) == found
    assert all(
        later[0] > earlier[1] + 1
        for earlier, later in zip(found.intervals, found.intervals[1:], strict=False)
    )


@settings(deadline=None)  # a busy machine is no mistake
@given(
    st.one_of(
        st.text(max_size=12), st.integers(), st.floats(), st.booleans(), st.none(), st.binary(max_size=3)
    )
)
def test_an_element_is_read_or_refused_with_a_sentence(value):
    try:
        found = read_numbers([value])
    except ValueError as error:
        assert str(error)
        assert "\n" not in str(error)
    else:
        assert isinstance(found, NumberSet)
        assert 0 <= found.first <= found.last <= LARGEST


def test_no_elements_mean_all():
    assert read_numbers([]) is None


def test_a_million_steps_are_two_numbers():
    found = read_numbers([f"0-{LARGEST}"])
    assert found.intervals == ((0, LARGEST),)
    assert LARGEST in found
    assert LARGEST + 1 not in found
    assert -1 not in found
    assert len(found) == LARGEST + 1
    assert str(found) == "[0-1000000]"


def test_a_long_filter_is_shown_short():
    assert str(read_numbers(range(0, 100, 2))) == "[0, 2, 4, 6, 8, 10, 12, …, 98]"


def test_only_numbers_are_inside():
    found = read_numbers([1])
    assert "1" not in found
    assert 1.5 not in found
    assert None not in found


@pytest.mark.parametrize("text", ["", "-", "3-", "-3", "1-2-3", "a", "1.0", "+1", "٣", "1_0", "0x1"])
def test_other_spellings_are_refused(text):
    with pytest.raises(ValueError, match="neither a number"):
        read_numbers([text])
