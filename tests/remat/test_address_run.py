"""Evicting neighbours in memory: exact runs, and the cheapest against all windows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from windtunnel.remat.address_run import cheapest_run
from windtunnel.remat.value import Value


def _value(address, n_bytes, cost=1.0, last_used=0.0):
    value = Value(n_bytes, cost, last_used=last_used)
    value.address = address
    return value


def test_two_neighbours_serve_what_two_strangers_cannot():
    far, a, b = _value(0, 100, cost=0.1), _value(1000, 100), _value(1100, 100)
    assert cheapest_run([b, far, a], 200, now=1.0) == [a, b]


def test_one_value_is_enough_when_it_is_large():
    small, large = _value(0, 100, cost=5.0), _value(100, 200, cost=1.0)
    assert cheapest_run([small, large], 150, now=1.0) == [large]


def test_the_longest_run_when_none_is_long_enough():
    a, b, far = _value(0, 100), _value(100, 100), _value(900, 150)
    assert cheapest_run([far, a, b], 1000, now=1.0) == [a, b]


def test_a_gap_of_a_sixty_fourth_does_not_part_neighbours():
    a, b = _value(0, 640), _value(650, 640)
    assert cheapest_run([a, b], 1000, now=1.0) == [a, b]
    b.address = 651
    assert cheapest_run([a, b], 1000, now=1.0) == [a]


def test_long_unused_values_go_first():
    fresh, stale = _value(0, 100, last_used=9.0), _value(500, 100, last_used=1.0)
    assert cheapest_run([fresh, stale], 100, now=10.0) == [stale]


def test_nothing_to_choose_from():
    assert cheapest_run([], 100, now=1.0) == []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(1, 50)), min_size=1, max_size=12),
    st.integers(1, 100),
)
def test_no_shorter_window_frees_enough_for_less(rows, short_by):
    """Every returned window is one of neighbours, has no value to spare at its start, and no better one exists."""
    values, address = [], 0
    for gap, n_bytes, cost in rows:
        address += 1000 * gap
        values.append(_value(address, n_bytes, float(cost)))
        address += n_bytes
    found = cheapest_run(values, short_by, now=1.0)
    runs = [[values[0]]]
    for (gap, _, _), value in zip(rows[1:], values[1:], strict=True):
        if gap:
            runs.append([])
        runs[-1].append(value)
    windows = [run[i:j] for run in runs for i in range(len(run)) for j in range(i + 1, len(run) + 1)]
    enough = [w for w in windows if sum(v.n_bytes for v in w) >= short_by]
    if not enough:
        assert sum(v.n_bytes for v in found) == max(sum(v.n_bytes for v in run) for run in runs)
    else:
        assert found in enough
        assert sum(v.cost for v in found) == min(sum(v.cost for v in w) for w in enough)
