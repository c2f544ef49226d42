"""Worlds whose classes are known, and what finding them costs."""

from __future__ import annotations

import random
import sys
from collections import Counter
from math import ceil, log2, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.communications import digits, explore, mesh_groups
from windtunnel.cluster.rank_communication import RankCommunication
from windtunnel.cluster.ranks_to_simulate import RankClasses


def assert_recovered(classes, sizes, digest):
    """Every rank is stood for by the lowest simulated rank with its digest."""
    found = classes.representatives()
    assert list(found) == list(range(prod(sizes)))
    wrong = [r for r, q in found.items() if digest(digits(r, sizes)) != digest(digits(q, sizes))]
    assert wrong == []
    assert len(set(found.values())) == len({digest(digits(r, sizes)) for r in found})


def test_a_world_of_equals_needs_two_more_ranks_for_each_axis_and_the_last():
    classes, rounds = explore((8, 16), lambda digits: "same")
    assert rounds == [(0,), (3, 7, 56, 120), (127,)]
    assert classes.representatives() == dict.fromkeys(range(128), 0)


def test_a_world_of_one_is_known_at_once():
    classes, rounds = explore((1,), lambda digits: "same")
    assert rounds == [(0,)]
    assert classes.representatives() == {0: 0}


def test_first_middle_and_last_stage():
    def digest(digits):
        return {0: "first", 7: "last"}.get(digits[1], "middle")

    classes, rounds = explore((4, 8), digest)
    assert_recovered(classes, (4, 8), digest)
    assert set(classes.representatives().values()) == {0, 4, 28}
    assert rounds == [(0,), (1, 3, 12, 28), (4, 24, 31), (7,), (27,)]


def test_what_is_uneven_only_on_the_last_stage_is_found():
    def digest(digits):
        tp, _, pp = digits
        return "uneven" if (tp, pp) == (7, 3) else f"stage {pp}"

    classes, _ = explore((8, 4, 4), digest)
    assert_recovered(classes, (8, 4, 4), digest)


def test_what_is_uneven_only_at_the_end_of_the_inner_axis_is_found():
    """Nothing is to be seen along dp where tp is 0."""

    def digest(digits):
        tp, dp = digits
        return "uneven" if tp == 7 and dp >= 9 else "same"

    classes, _ = explore((8, 16), digest)
    assert_recovered(classes, (8, 16), digest)


def test_positions_apart_with_the_same_work_are_one_class():
    def digest(digits):
        return "AABBBBAA"[digits[0]]

    classes, _ = explore((8,), digest)
    assert classes.representatives() == {0: 0, 1: 0, 2: 2, 3: 2, 4: 2, 5: 2, 6: 0, 7: 0}


@pytest.mark.parametrize("place", [0, 4095])
def test_a_first_or_last_rank_unlike_all_others_costs_no_search(place):
    """The first logs, the last gets the uneven rest."""
    classes, rounds = explore((4096,), lambda digits: str(digits[0] == place))
    assert sum(map(len, rounds)) <= 8
    assert sorted(set(classes.representatives().values())) == sorted({place, 0 if place else 1})


def test_the_cost_does_not_grow_with_the_world():
    def digest(digits):
        tp, dp, pp = digits
        stage = {0: "first", 7: "last"}.get(pp, "middle")
        return f"{stage} {tp == 7 and pp == 7} {tp == dp == pp == 0}"

    costs = []
    for dp in (16, 256):
        classes, rounds = explore((8, dp, 8), digest)
        assert_recovered(classes, (8, dp, 8), digest)
        costs.append(sum(map(len, rounds)))
    assert costs[0] == costs[1] <= 30


def test_stages_that_all_differ_cost_one_look_along_each_other_axis():
    """As in a 1F1B schedule, where each stage keeps another number of micro-batches."""
    classes, rounds = explore((8, 256, 8), lambda digits: str(digits[2]))
    assert sum(map(len, rounds)) == 8 * 4 + 2  # its last rank, and middles on the first line
    assert len(set(classes.representatives().values())) == 8


def test_a_line_unlike_its_model_is_searched_for_itself():
    def digest(digits):
        tp, pp = digits
        return f"{pp} {tp if pp == 0 else tp // 9}"

    classes, _ = explore((12, 3), digest)
    assert_recovered(classes, (12, 3), digest)


def test_representatives_of_a_large_world_are_quick():
    classes, _ = explore((8, 256, 8), lambda digits: f"{digits[2]} {digits[0] > 3}")
    calls = Counter()
    sys.setprofile(lambda frame, event, _: calls.update([event]))  # a clock would measure the machine as well
    try:
        found = classes.representatives()
    finally:
        sys.setprofile(None)
    assert calls["call"] < 16384 / 8  # nothing of ours is called for each rank
    assert len(found) == 16384
    assert len(set(found.values())) == 16


def test_a_boundary_costs_a_search_by_halving():
    classes, rounds = explore((16384,), lambda digits: str(digits[0] >= 5000))
    assert classes.representatives()[4999] == 0
    assert len(set(classes.representatives().values())) == 2
    assert classes.representatives()[5000] == classes.representatives()[16383]
    assert sum(map(len, rounds)) <= 5 + 2 * log2(16384)


def test_groups_no_mesh_explains_are_searched_along_the_world():
    def groups(rank, sizes):
        return (tuple(range(12)), (0, 1), (0, 1, 2), (0, 7))

    def digest(digits):
        return "odd" if digits[0] == 7 else "same"

    classes, _ = explore((12,), digest, groups)
    assert_recovered(classes, (12,), digest)


# -- ranks that fail, and ranks nobody asked for --------------------------------------------------------------


def test_a_world_in_which_every_rank_fails_is_given_up_soon():
    classes, n = RankClasses(16384), 0
    while wanted := classes.wanted():
        for rank in wanted:
            classes.learn(None, rank)
            n += 1
    assert n == 3
    assert classes.representatives()[0] == 0
    assert classes.representatives()[16383] == 16383


def test_a_rank_that_failed_stands_for_no_rank_that_did_not():
    sizes, classes = (2, 8), RankClasses(16)
    while wanted := classes.wanted():
        for rank in wanted:
            communication = RankCommunication(rank, 16, mesh_groups(rank, sizes), "same")
            classes.learn(None if rank >= 14 else communication, rank)
    found = classes.representatives()
    assert {found[rank] for rank in range(14)} == {0}
    assert (found[14], found[15]) == (14, 15)


def test_a_rank_nobody_asked_for_may_be_told_first():
    classes = RankClasses(64)
    classes.learn(RankCommunication(20, 64, (), "other"), 20)
    assert classes.wanted() == (0,)
    while wanted := classes.wanted():
        for rank in wanted:
            classes.learn(RankCommunication(rank, 64, (), "other" if rank in (20, 21) else "same"), rank)
    found = classes.representatives()
    assert [rank for rank in found if found[rank] == 20] == [20, 21]


def test_nothing_can_be_said_before_rank_0():
    with pytest.raises(ValueError, match="rank 0"):
        RankClasses(4).representatives()


# -- any world ------------------------------------------------------------------------------------------------


@st.composite
def worlds(draw):
    """A mesh, and for each axis, once in each class of the axes outside it, runs of positions with equal work."""
    sizes = tuple(draw(st.lists(st.integers(2, 24), min_size=1, max_size=3)))
    names = iter(range(10**9))
    n_looks = 0

    def node(n_axes):
        nonlocal n_looks
        if n_axes == 0:
            return None
        size = sizes[n_axes - 1]
        cuts = draw(st.sets(st.integers(1, size - 1), max_size=2))
        n_looks += 4 + 2 * len(cuts) * ceil(log2(size) + 1) + 2 * (1 + len(cuts))
        return [(cut, next(names), node(n_axes - 1)) for cut in sorted({0, *cuts})]

    tree = node(len(sizes))

    def digest(digits):
        at, path = tree, []
        for digit in reversed(digits):
            _, name, at = [run for run in at if run[0] <= digit][-1]
            path.append(name)
        return str(path)

    return sizes, digest, n_looks


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_any_world_of_runs_is_recovered_at_a_bounded_cost(world):
    sizes, digest, n_looks = world
    classes, rounds = explore(sizes, digest)
    assert_recovered(classes, sizes, digest)
    asked = [rank for wanted in rounds for rank in wanted]
    assert len(asked) == len(set(asked)) <= max(n_looks, 8)  # every rank of a small world is looked at


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(2, 12), min_size=1, max_size=4), st.data())
def test_what_is_divided_over_all_axes_at_once_is_recovered(sizes, data):
    """As the shards of a parameter over all ranks: some whole, one smaller, the rest empty."""
    sizes = tuple(sizes)
    cuts = sorted(data.draw(st.sets(st.integers(1, prod(sizes) - 1), max_size=3)))

    def digest(digits):
        rank = sum(digit * prod(sizes[:i]) for i, digit in enumerate(digits))
        return str(sum(cut <= rank for cut in cuts))

    classes, rounds = explore(sizes, digest)
    assert_recovered(classes, sizes, digest)
    n_looks = sum(ceil(2 * log2(size)) + 6 for size in sizes) * (1 + 2 * len(cuts))
    assert sum(map(len, rounds)) <= n_looks


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(2, 5), min_size=1, max_size=3), st.integers(1, 4), st.randoms(use_true_random=False)
)
def test_a_world_without_any_order_is_not_asked_about_twice(sizes, n_digests, chance: random.Random):
    """Nothing promises that all its classes are found; those that were simulated are right."""
    sizes = tuple(sizes)
    names = {digits(rank, sizes): str(chance.randrange(n_digests)) for rank in range(prod(sizes))}
    classes, rounds = explore(sizes, names.__getitem__)
    asked = [rank for wanted in rounds for rank in wanted]
    assert len(asked) == len(set(asked))
    found = classes.representatives()
    assert [r for r in asked if names[digits(r, sizes)] != names[digits(found[r], sizes)]] == []
    assert set(found.values()) <= set(asked)


@settings(max_examples=60, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_learning_does_not_matter(world, chance: random.Random):
    sizes, digest, _ = world
    expected, rounds = explore(sizes, digest)
    classes, asked = RankClasses(prod(sizes)), set()
    while wanted := classes.wanted():
        rank = chance.choice(wanted)
        asked.add(rank)
        classes.learn(
            RankCommunication(rank, prod(sizes), mesh_groups(rank, sizes), digest(digits(rank, sizes))), rank
        )
    assert classes.representatives() == expected.representatives()
    assert asked == {rank for wanted in rounds for rank in wanted}


def test_ranks_that_differ_only_in_crumbs_of_memory_are_one_class():
    """A sharded optimizer cuts its buffer at other tensors on each rank: other pieces, as many bytes."""
    classes = RankClasses(64)
    asked = set()
    while wanted := classes.wanted():
        asked |= set(wanted)
        for rank in wanted:
            peak = 10**9 + 8 * rank
            communication = RankCommunication(
                rank, 64, (), f"pieces {rank}", rough_digest="model", peak_bytes=peak
            )
            classes.learn(communication, rank)
    assert set(classes.representatives().values()) == {0}
    assert len(asked) <= 16


def test_the_same_model_with_more_memory_is_another_class():
    classes = RankClasses(64)
    while wanted := classes.wanted():
        for rank in wanted:
            peak = 10**9 if rank < 32 else 10**9 + 2 * 10**6
            classes.learn(
                RankCommunication(rank, 64, (), f"pieces {rank}", rough_digest="model", peak_bytes=peak), rank
            )
    assert classes.representatives() == {rank: 0 if rank < 32 else 32 for rank in range(64)}
