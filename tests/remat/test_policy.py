"""Policies: exact scores of values made by hand."""

from __future__ import annotations

from math import inf

import pytest

from windtunnel.errors import UsageError
from windtunnel.remat.policy import (
    POLICIES,
    ancestors,
    dtr,
    largest,
    local,
    lru,
    msps,
    neighbour_cost,
    policy_named,
)
from windtunnel.remat.value import Value


def _chain(*costs: float) -> list[Value]:
    values: list[Value] = []
    for cost in costs:
        values.append(Value(10, cost, values[-1:], last_used=2.0))
    return values


def test_local_is_cost_for_bytes_and_idle_time():
    (value,) = _chain(6.0)
    assert local(value, 5.0) == 6.0 / (10 * 3.0)
    assert dtr(value, 5.0) == local(value, 5.0)


def test_dtr_adds_what_is_lost_on_both_sides():
    a, b, c, d = _chain(1.0, 2.0, 4.0, 8.0)
    a.evict()
    c.evict()
    assert neighbour_cost(b) == 5.0
    assert dtr(b, 3.0) == 7.0 / 10
    assert neighbour_cost(d) == 4.0
    b.evict()  # now all three are one neighbourhood
    assert neighbour_cost(d) == 7.0
    c.restore()  # leaves by subtraction, and parts d from the rest
    assert neighbour_cost(d) == 0.0
    assert neighbour_cost(c) == 3.0


def test_a_neighbourhood_met_twice_counts_once():
    root = Value(10, 1.0)
    left, right = Value(10, 2.0, [root]), Value(10, 4.0, [root])
    join = Value(10, 8.0, [left, right])
    for value in (root, left, right):
        value.evict()
    assert neighbour_cost(join) == 7.0


def test_msps_counts_evicted_ancestors_only_as_far_as_they_are_evicted():
    a, b, c, d, e = _chain(1.0, 2.0, 4.0, 8.0, 16.0)
    for value in (a, c, e):
        value.evict()
    assert d.ancestor_cost() == 4.0  # not a, behind b
    assert msps(d, 3.0) == 12.0 / 10  # and not e
    b.evict()
    assert d.ancestor_cost() == 7.0
    assert d.ancestor_cost(limit=5.0) == 5.0
    assert d.ancestor_cost(limit=50.0, most=2) == 50.0


def test_an_ancestor_met_twice_counts_once():
    root = Value(10, 1.0)
    left, right = Value(10, 2.0, [root]), Value(10, 4.0, [root])
    join = Value(10, 8.0, [left, right])
    for value in (root, left, right):
        value.evict()
    assert join.ancestor_cost() == 7.0


def test_lru_and_largest():
    old, new = Value(10, 1.0, last_used=1.0), Value(40, 1.0, last_used=2.0)
    assert lru(old, 3.0) < lru(new, 3.0)
    assert largest(new, 3.0) < largest(old, 3.0)


@pytest.mark.parametrize("policy", [dtr, local, ancestors])
def test_what_is_used_this_moment_goes_last(policy):
    assert policy(Value(10, 1.0, last_used=3.0), 3.0) == inf


@pytest.mark.parametrize("policy", [dtr, local, largest, msps, ancestors])
def test_what_frees_nothing_goes_last(policy):
    assert policy(Value(0, 1.0), 3.0) == inf


def test_policies_are_found_by_name():
    assert all(policy_named(name) is policy for name, policy in POLICIES.items())
    with pytest.raises(
        UsageError, match=r"no policy 'newest' \(try one of dtr, local, lru, largest, msps, ancestors\)"
    ):
        policy_named("newest")
