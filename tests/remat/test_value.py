"""Values: their neighbourhoods, and ancestor costs that are remembered as long as they hold."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.remat.value import Value


def test_a_chain_costs_what_is_gone_above_it():
    a = Value(1, 1.0)
    b = Value(1, 2.0, [a])
    c = Value(1, 4.0, [b])
    assert c.known_ancestor_cost() == 0
    b.evict()
    assert c.known_ancestor_cost() == 2.0
    a.evict()
    assert c.known_ancestor_cost() == 3.0
    b.restore()
    assert c.known_ancestor_cost() == 0
    assert b.known_ancestor_cost() == 1.0


def test_an_ancestor_reached_twice_costs_once():
    top = Value(1, 8.0)
    left, right = Value(1, 1.0, [top]), Value(1, 2.0, [top])
    join = Value(1, 1.0, [left, right])
    for value in (top, left, right):
        value.evict()
    assert join.known_ancestor_cost() == 11.0


def test_neighbourhoods_join_and_what_returns_leaves_its_cost():
    a = Value(1, 1.0)
    b = Value(1, 2.0, [a])
    c = Value(1, 4.0, [b])
    a.evict()
    c.evict()
    assert a.neighbourhood.root is not c.neighbourhood.root
    b.evict()
    assert a.neighbourhood.root is c.neighbourhood.root
    assert a.neighbourhood.cost == 7.0
    b.restore()
    assert a.neighbourhood.cost == 5.0


@settings(deadline=None)
@given(st.data())
def test_remembered_costs_are_always_the_true_ones(data):
    values: list[Value] = []
    for i in range(data.draw(st.integers(1, 9))):
        parents = data.draw(st.lists(st.sampled_from(values), max_size=3, unique=True)) if values else []
        values.append(Value(1, 2.0**i, parents))
    for value in data.draw(st.lists(st.sampled_from(values), max_size=25)):
        if value.is_resident:
            value.evict()
        else:
            value.restore()
        asked = data.draw(st.sampled_from(values))
        assert asked.known_ancestor_cost() == asked.ancestor_cost()
    for value in values:
        assert value.known_ancestor_cost() == value.ancestor_cost()
