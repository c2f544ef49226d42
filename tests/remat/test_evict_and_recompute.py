"""When to forget, what to forget, how to have it again: exact on a device of integers."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.remat.fake_host import World
from windtunnel.errors import UsageError
from windtunnel.remat.evict_and_recompute import BY_ADDRESS
from windtunnel.remat.policy import POLICIES

# -- when ---------------------------------------------------------------------------------------------------------


def test_nothing_is_evicted_below_the_threshold():
    world = World(threshold=300)
    values = [world.run("op", 100) for _ in range(3)]
    assert world.host.resident == set(values)
    assert world.engine.statistics.evictions == 0


def test_room_is_made_after_an_operator_of_unknown_size_and_before_one_of_known_size():
    world = World(threshold=250)
    first, second = world.run("op", 100), world.run("op", 100)
    third = world.run("other", 100)  # unknown: 300 are alive for a moment
    assert world.host.peak == 300
    assert world.host.resident == {second, third}
    fourth = world.run("other", 100)  # known: there is room before it runs
    assert world.host.peak == 300
    assert world.host.resident == {third, fourth}
    assert not first.is_resident


def test_without_a_threshold_the_device_is_the_limit():
    world = World(threshold=None)
    world.host.room = 150
    first, second = world.run("op", 100), world.run("op", 100)
    assert world.host.resident == {second}
    assert not first.is_resident


def test_a_new_threshold_holds_at_the_next_operator():
    world = World(threshold=1000)
    values = [world.run("op", 100) for _ in range(5)]
    world.settings.threshold = 300
    last = world.run("op", 100)
    assert world.host.resident == {*values[3:], last}
    world.settings.threshold = 1000
    world.run("op", 100)
    assert world.engine.statistics.evictions == 3


def test_a_new_threshold_amid_a_round_does_not_trip_the_guard():
    world = World(threshold=1000)
    values = _chain(world, 9)
    world.settings.threshold = 450
    world.backward(reversed(values))
    world.engine.end_round()
    assert world.engine.statistics.evictions > 0
    assert world.engine.statistics.guarded_rounds == 0


def test_nothing_is_evicted_while_it_is_not_wanted():
    world = World(threshold=100)
    world.engine.is_evicting = False
    values = _chain(world, 5)
    world.backward(reversed(values))
    assert world.engine.statistics.evictions == 0


def test_is_near_asks_whether_the_largest_operator_would_still_fit():
    world = World(threshold=300)
    world.run("op", 100)
    assert not world.engine.is_near()
    world.run("op", 100)
    assert not world.engine.is_near()  # 200 and 100 more: exactly 300
    world.host.static = 1
    assert world.engine.is_near()


def test_a_failed_allocation_evicts_at_least_what_was_asked_for():
    world = World(threshold=10_000)
    values = [world.run("op", 100) for _ in range(5)]
    assert world.engine.evict_for(150)
    assert world.host.resident == set(values[2:])
    world.host.held.update(values)
    assert not world.engine.evict_for(1)


# -- what ---------------------------------------------------------------------------------------------------------


def test_what_the_program_holds_or_an_operator_needs_stays():
    world = World(threshold=1000)
    held, pinned, free = (world.run("op", 100) for _ in range(3))
    world.host.held.add(held)
    pinned.pins += 1
    world.settings.threshold = 1
    assert not world.engine.make_room(0)
    assert world.host.resident == {held, pinned}
    assert not free.is_resident
    assert world.engine.statistics.least_reached_bytes == 200


def test_what_is_not_saved_is_not_a_candidate():
    world = World(threshold=1000)
    loose = world.run("op", 100, is_saved=False)
    saved = world.run("op", 100)
    assert world.engine.candidates() == [saved]
    assert loose.position == -1


def test_the_last_unsave_drops_the_value():
    world = World(threshold=1000)
    value = world.run("op", 100)
    world.engine.save(value)
    world.engine.unsave(value)
    assert value.is_resident
    world.engine.unsave(value)
    assert world.host.resident == set()
    assert world.engine.candidates() == []


def test_a_value_that_cannot_be_needed_again_is_freed_although_it_was_a_candidate():
    world = World(threshold=1000)
    value = world.run("op", 100)
    other = world.run("op", 100)
    world.host.resident.discard(value)
    del value
    assert world.engine.candidates() == [other]
    assert other.position == 0


def _choice(policy, **extra):
    """Four values: a is old, b is large, c is cheap, d lies next to what is already gone."""
    world = World(threshold=10_000, policy=policy, **extra)
    parent = world.run("root", 100, cost=50.0)
    d = world.run("d", 100, cost=3.0, parents=[parent])
    world.settings.threshold = world.host.live_bytes() - 1
    d.pins += 1
    world.engine.make_room(0)
    d.pins -= 1
    assert not parent.is_resident
    world.settings.threshold = 10_000
    a = world.run("a", 100, cost=4.0)
    b = world.run("b", 150, cost=4.0)
    c = world.run("c", 100, cost=1.0)
    world.engine.clock += 1
    names = {a: "a", b: "b", c: "c", d: "d"}
    world.settings.threshold = world.host.live_bytes() - 1
    before = set(world.host.resident)
    world.engine.make_room(0)
    (gone,) = before - world.host.resident
    return names[gone]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("dtr", "a"), ("local", "d"), ("lru", "d"), ("largest", "b"), ("msps", "c"), ("ancestors", "a")],
)
def test_policies_choose_differently(policy, expected):
    # Last used: d at 53, a at 57, b at 61, c at 62; now it is 63.
    # dtr: a 4/600, b 4/300, c 1/100, d (3 + 50)/1000; local: d 3/1000; msps: c 1/100, b 4/150, a 4/100, d 53/100.
    # ancestors: as dtr, because here nothing that is gone was computed from what is left.
    assert _choice(policy) == expected
    assert policy in POLICIES


def test_an_unknown_policy_is_an_error_with_the_names():
    world = World(threshold=10, policy="fifo")
    with pytest.raises(UsageError, match="no policy 'fifo'"):
        world.run("op", 100)


def test_neighbours_in_memory_go_together():
    world = World(threshold=10_000, policy=BY_ADDRESS)
    values = [world.run("op", 100) for _ in range(5)]
    for value, address in zip(values, (0, 500, 600, 1000, 2000), strict=True):
        value.address = address
    world.settings.threshold = world.host.live_bytes() - 150
    world.engine.make_room(0)
    assert world.host.resident == {values[0], values[3], values[4]}


def test_sampling_looks_at_everything_when_the_sample_is_all_in_use():
    for free in range(9):
        world = World(threshold=10_000, is_sampling=True)
        values = [world.run("op", 100) for _ in range(9)]
        world.host.held.update(value for i, value in enumerate(values) if i != free)
        world.settings.threshold = 850
        assert world.engine.make_room(0)
        assert not values[free].is_resident


# -- having again -------------------------------------------------------------------------------------------------


def _chain(world, length, n_bytes=100):
    values = []
    for _ in range(length):
        values.append(world.run("op", n_bytes, parents=values[-1:]))
    return values


def _evict(world, values):
    for value in values:
        world.engine._evict(value)


def test_missing_ancestors_are_computed_first():
    world = World(threshold=1000)
    a, b, c, d = _chain(world, 4)
    _evict(world, [b, c, d])
    world.engine.fetch(d)
    assert world.host.computed == [b, c, d]
    assert world.engine.statistics.rematerialisations == 3
    assert world.engine.statistics.rematerialised_bytes == 300
    assert world.engine.statistics.longest_chain == 3
    assert a.is_resident


def test_only_direct_parents_are_pinned_on_the_way():
    """Ten values gone, room for three: each is dropped as soon as the next one has been computed."""
    world = World(threshold=10_000)
    values = _chain(world, 10)
    _evict(world, values)
    world.settings.threshold = 250
    world.engine.fetch(values[-1])
    assert world.host.computed == values
    assert world.host.peak == 1000  # of the forward
    assert world.host.live_bytes() <= 250
    assert all(value.pins == 0 for value in values)


def test_a_value_with_two_missing_parents():
    world = World(threshold=1000)
    a, b = world.run("a", 100), world.run("b", 100)
    c = world.run("c", 100, parents=[a, b])
    _evict(world, [a, b, c])
    world.settings.threshold = 300
    world.engine.fetch(c)
    assert world.host.computed == [a, b, c]
    assert world.host.resident == {a, b, c}


def test_all_results_of_an_operator_come_back_at_once():
    world = World(threshold=1000)
    a = world.run("a", 100)
    b = world.run("b", 100, parents=[a])
    c = world.run("c", 50, parents=[a])
    world.host.siblings = {b: [b, c], c: [b, c]}
    _evict(world, [b, c])
    world.engine.fetch(c)
    assert world.host.computed == [c]
    assert b.is_resident
    assert set(world.engine.candidates()) == {a, b, c}


def test_once_the_guard_has_tripped_what_nobody_saved_is_kept_only_in_place_of_what_is_absent():
    world = World(threshold=10_000)
    values = [world.run("op", 100)]
    for i in range(1, 13):  # every third is saved
        values.append(world.run("op", 100, parents=values[-1:], is_saved=i % 3 == 0))
    for value in values[1:]:
        if value.saves:
            world.engine._evict(value)
        else:
            world.host.drop(value)
    assert world.engine.absent_bytes == 400  # 3, 6, 9 and 12
    world.settings.threshold = 1
    world.engine.guard.n_computed = 1000
    world.engine.fetch(values[12])
    assert world.host.computed == values[1:]
    assert world.engine.absent_bytes == 0
    assert world.host.resident == {values[0], values[3], values[6], values[9], values[12]}
    assert world.host.peak == 1300  # of the forward, where nothing had been dropped yet


def test_a_long_chain_needs_no_recursion():
    world = World(threshold=1 << 30)
    values = _chain(world, 3 * sys.getrecursionlimit())
    _evict(world, values)
    world.engine.fetch(values[-1])
    assert world.engine.statistics.longest_chain == len(values)


def test_pins_are_taken_off_when_computing_fails():
    world = World(threshold=1000)
    a, b = _chain(world, 2)
    _evict(world, [a, b])

    def fails(value):
        raise MemoryError

    world.host.compute = fails
    with pytest.raises(MemoryError):
        world.engine.fetch(b)
    assert (a.pins, b.pins) == (0, 0)


def test_the_clock_is_the_sum_of_costs():
    world = World(threshold=1000)
    a = world.run("a", 100, cost=2.0)
    b = world.run("b", 100, cost=3.0, parents=[a])
    assert world.engine.clock == 5.0
    assert (a.last_used, b.last_used) == (5.0, 5.0)
    _evict(world, [b])
    world.engine.fetch(b)
    assert world.engine.clock == 5.0 + 3.0 + 3.0  # who asks, and computing it


# -- properties ---------------------------------------------------------------------------------------------------


@st.composite
def programs(draw):
    """Operators as (bytes, cost, parents); then the share of their bytes that fits."""
    operators = []
    for i in range(draw(st.integers(1, 25))):
        parents = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        operators.append((draw(st.integers(1, 50)), draw(st.floats(0.1, 10)), sorted(parents)))
    return operators, draw(st.floats(0.05, 1.2))


@settings(max_examples=150, deadline=None)
@given(programs(), st.sampled_from([*POLICIES, BY_ADDRESS]), st.data())
def test_backward_never_finds_more_in_memory_than_plain_training_would(program, policy, data):
    """Some values are saved, the others die in forward; each time one has been fetched, the books are compared."""
    operators, share = program
    total = sum(n_bytes for n_bytes, _, _ in operators)
    world = World(threshold=max(int(share * total), 1), policy=policy)
    for _ in range(2):
        values, saved = [], []
        for i, (n_bytes, cost, parents) in enumerate(operators):
            is_saved = data.draw(st.booleans())
            values.append(world.run(f"op{i}", n_bytes, cost, [values[p] for p in parents], is_saved=is_saved))
            values[-1].address = 64 * i
            saved += [values[-1]] if is_saved else []
        for value in values:
            if not value.saves:
                world.host.drop(value)
        plain = sum(value.n_bytes for value in saved)
        for value in reversed(saved):
            world.engine.fetch(value)
            assert world.host.live_bytes() <= max(plain, world.engine.limit)
            world.engine.unsave(value)
            plain -= value.n_bytes
        assert world.engine.absent_bytes == 0
        world.engine.end_round()
        world.host.resident.clear()


@settings(max_examples=150, deadline=None)
@given(programs(), st.sampled_from([*POLICIES, BY_ADDRESS]), st.booleans(), st.data())
def test_any_program_ends_with_every_value_served(program, policy, is_sampling, data):
    operators, share = program
    total = sum(n_bytes for n_bytes, _, _ in operators)
    world = World(threshold=max(int(share * total), 1), policy=policy, is_sampling=is_sampling)
    engine, host = world.engine, world.host
    for _ in range(2):
        values = []
        for i, (n_bytes, cost, parents) in enumerate(operators):
            values.append(world.run(f"op{i}", n_bytes, cost, [values[p] for p in parents]))
            values[-1].address = 64 * i
            _check_books(world)
        host.held = set(data.draw(st.lists(st.sampled_from(values), max_size=3)))
        host.held &= host.resident
        world.backward(reversed(values))
        _check_books(world)
        assert engine.candidates() == []
        assert all(value.pins == 0 and value.saves == 0 for value in values)
        assert host.resident == host.held
        # the guard: twice the operators of the forward, and each value at most once more
        assert engine.guard.n_computed <= 3 * len(operators) + 1
        host.resident.clear()
        host.held.clear()


def _check_books(world):
    """Values the engine takes for resident are so; candidates know their places."""
    for position, reference in enumerate(world.engine._candidates):
        value = reference()
        if value is not None:
            assert value.position == position
    for value in world.engine.candidates():
        assert value in world.host.resident
