"""A threshold that cannot be held: the work is bounded and the limit rises."""

from __future__ import annotations

from tests.remat.fake_host import World
from windtunnel.remat.guard import Guard
from windtunnel.remat.statistics import Statistics


def test_a_round_may_compute_twice_as_many_values_as_it_had_operators():
    guard = Guard(n_operators=10, n_computed=20)
    assert not guard.is_tripped
    guard.n_computed = 21
    assert guard.is_tripped


def test_the_limit_rises_a_quarter_of_the_way_to_the_peak():
    guard, statistics = Guard(n_operators=1, n_computed=9, peak_bytes=1400), Statistics()
    guard.end_round(1000, statistics)
    assert guard.floor == 1100
    assert (statistics.guarded_rounds, statistics.raised_limit_bytes) == (1, 1100)
    assert (guard.n_operators, guard.n_computed, guard.peak_bytes) == (0, 0, 0)


def test_a_round_within_its_means_changes_nothing():
    guard, statistics = Guard(n_operators=10, n_computed=20, peak_bytes=5000), Statistics()
    guard.end_round(1000, statistics)
    assert guard.floor == 0
    assert statistics == Statistics()


def _step(world, length=30):
    """A chain where each value is asked for twice, last first: the worst for a budget of a few values."""
    values = []
    for i in range(length):
        values.append(world.run(f"op{i}", 100, parents=values[-1:]))
    before = len(world.host.computed)
    world.backward(reversed(values))
    return len(world.host.computed) - before


def test_a_budget_far_too_small_does_not_thrash():
    world = World(threshold=250)
    counts = [_step(world) for _ in range(12)]
    assert max(counts) <= 3 * 30
    assert world.engine.statistics.guarded_rounds > 0
    world.run("next", 100)  # ends the last round
    limit = world.engine.limit
    assert 250 < limit < 3000
    assert counts[-1] <= 2 * 30  # the limit it found can be held
    assert world.engine.statistics.raised_limit_bytes == limit


def test_a_new_threshold_forgets_what_was_learnt():
    world = World(threshold=250)
    for _ in range(5):
        _step(world)
    world.run("next", 100)
    assert world.engine.limit > 300
    world.settings.threshold = 300
    assert world.engine.limit == 300
