"""Several ranks on one clock: who waits for whom, and that a few ranks can stand for all."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.programs import host, kernel, program, receive, reduce_all, send, step, wait
from windtunnel.cluster.timeline import WorldTimeline, replay_world

PAIR = [(0, 1)]


def play(*lists, groups=PAIR, is_synchronous=False) -> WorldTimeline:
    """Each rank by itself, all in the same groups."""
    programs = {
        rank: program(rank, steps, groups, is_synchronous=is_synchronous) for rank, steps in enumerate(lists)
    }
    return replay_world(programs, {rank: rank for rank in programs}, len(lists))


def stalls(world: WorldTimeline, rank: int) -> list[tuple[float, float, int]]:
    found = world.ranks[rank].stalls
    return list(zip(found.start.tolist(), found.end.tolist(), found.cause.tolist(), strict=True))


@pytest.mark.parametrize("is_synchronous", [False, True])
def test_a_collective_ends_for_everyone_when_the_last_has_come(is_synchronous):
    fast, slow = ([kernel(t), reduce_all(3.0), kernel(1.0)] for t in (2.0, 5.0))
    world = play(fast, slow, is_synchronous=is_synchronous)
    one, other = world.ranks[0], world.ranks[1]
    assert (one.ready[1], one.start[1], one.end[1]) == (2.0, 5.0, 8.0)
    assert (other.ready[1], other.start[1], other.end[1]) == (5.0, 5.0, 8.0)
    assert one.start[2] == other.start[2] == 8.0
    assert stalls(world, 0) == [(2.0, 8.0, 1)]
    assert stalls(world, 1) == [(5.0, 8.0, 1)]
    assert world.n_unmet == world.n_alone == 0


def test_a_call_takes_as_long_as_its_slowest_rank():
    world = play([reduce_all(1.0)], [reduce_all(4.0)])
    assert world.ranks[0].end[0] == world.ranks[1].end[0] == 4.0


def test_calls_of_a_group_meet_in_their_order():
    world = play(
        [reduce_all(1.0), reduce_all(2.0), reduce_all(4.0)],
        [kernel(1.0), reduce_all(1.0), kernel(5.0), reduce_all(2.0), reduce_all(4.0)],
    )
    assert world.ranks[0].start.tolist() == [1.0, 7.0, 9.0]


def test_groups_do_not_wait_for_each_other():
    """Rank 0 waits for rank 1 in one group while it communicates with rank 2 in the other."""
    groups = {0: [(0, 1), (0, 2)], 1: [(0, 1)], 2: [(0, 2)]}
    lists = {
        0: [
            reduce_all(1.0, 0, is_async=True, id=1),
            reduce_all(1.0, 1, is_async=True, id=2),
            wait(1),
            wait(2),
        ],
        1: [kernel(9.0), reduce_all(1.0, 0)],
        2: [reduce_all(1.0, 0)],
    }
    programs = {rank: program(rank, lists[rank], groups[rank]) for rank in lists}
    world = replay_world(programs, {0: 0, 1: 1, 2: 2}, 3)
    assert world.ranks[0].start[:2].tolist() == [9.0, 0.0]


def test_a_receive_waits_for_the_send():
    world = play([kernel(4.0), send(1, seconds=2.0), kernel(1.0)], [receive(0, seconds=2.0), kernel(1.0)])
    assert (world.ranks[0].start[1], world.ranks[0].end[1]) == (4.0, 6.0)
    assert world.ranks[0].start[2] == 4.0  # the sender goes on
    assert world.ranks[1].ready[0] == 0.0
    assert world.ranks[1].start[1] == 6.0
    assert stalls(world, 1) == [(0.0, 6.0, 0)]


def test_a_send_that_is_waited_for_waits_for_the_receive():
    world = play([send(1, seconds=2.0, is_async=False), kernel(1.0)], [kernel(4.0), receive(0, seconds=2.0)])
    assert world.ranks[0].start[1] == 6.0


def test_messages_arrive_in_the_order_they_were_sent():
    world = play(
        [send(1), kernel(5.0), send(1)], [receive(0), kernel(1.0), receive(0), kernel(1.0)], groups=PAIR
    )
    assert world.ranks[1].start[[1, 3]].tolist() == [0.0, 5.0]


def test_neighbours_that_send_and_receive_at_once_do_not_lock_each_other():
    """Whatever comes first in the group of calls: both directions are under way at once."""
    for first, second in (((send, 1), (receive, 2)), ((receive, 2), (send, 1))):
        lists = [
            [kernel(1.0 + rank), *(what(1 - rank, seconds=2.0, is_async=True, id=id) for what, id in (first, second)),
             wait(1), wait(2), kernel(1.0)]
            for rank in (0, 1)
        ]  # fmt: skip
        world = play(*lists)
        assert world.n_unmet == 0
        assert [world.ranks[rank].start[-1] for rank in (0, 1)] == [4.0, 4.0]


def test_a_chain_of_ranks_waits_for_its_slowest():
    """What rank 0 waits for is rank 1, which waits for rank 2."""
    groups = {0: [(0, 1)], 1: [(0, 1), (1, 2)], 2: [(1, 2)]}
    lists = {
        0: [reduce_all(1.0)],
        1: [reduce_all(1.0, 1), reduce_all(1.0, 0)],
        2: [kernel(7.0), reduce_all(1.0)],
    }
    programs = {rank: program(rank, lists[rank], groups[rank]) for rank in lists}
    world = replay_world(programs, {0: 0, 1: 1, 2: 2}, 3)
    assert (world.ranks[0].ready[0], world.ranks[0].end[0]) == (0.0, 9.0)


def test_a_peer_that_never_comes_is_counted_and_does_not_hang():
    world = play([kernel(2.0), reduce_all(3.0), kernel(1.0), step()], [kernel(1.0)])
    assert world.n_unmet == 1
    assert world.ranks[0].step_ends.tolist() == [6.0]


def test_every_message_nobody_receives_is_counted():
    world = play([receive(1), receive(1), kernel(1.0)], [kernel(1.0)])
    assert world.n_unmet == 2
    assert world.ranks[0].end[-1] == 1.0


def test_a_group_whose_other_ranks_were_not_simulated_goes_on_alone():
    alone = program(0, [kernel(2.0), reduce_all(3.0), kernel(1.0)], PAIR)
    world = replay_world({0: alone}, {0: 0}, 2)
    assert world.ranks[0].end.tolist() == [2.0, 5.0, 6.0]
    assert (world.n_unmet, world.n_alone, dict(world.image)) == (0, 0, {0: 0})


def test_a_message_to_a_rank_that_was_not_simulated_goes_on_alone():
    world = replay_world({0: program(0, [send(1), receive(1, seconds=2.0), kernel(1.0)], PAIR)}, {0: 0}, 2)
    assert world.ranks[0].end[-1] == 3.0
    assert (world.n_unmet, world.n_alone) == (0, 2)


def test_a_rank_whose_representative_has_no_program_is_left_out():
    steps = [kernel(1.0), reduce_all(1.0)]
    world = replay_world({0: program(0, steps, [(0, 1, 2, 3)])}, {0: 0, 1: 0, 2: 2, 3: 2}, 4)
    assert dict(world.image) == {0: 0, 1: 0}
    assert world.ranks[0].end.tolist() == [1.0, 2.0]


def test_two_programs_stand_for_eight_ranks():
    """Tensor parallel 2, pipeline 2, data parallel 2: the second stage is slower, the others wait for it."""

    def written(rank: int):
        stage = rank // 2 % 2
        groups = [(rank // 2 * 2, rank // 2 * 2 + 1), (rank % 4, rank % 4 + 4), tuple(range(8))]
        other = rank ^ 2
        communication = [send(other, 2, 1.0)] if stage == 0 else [receive(other, 2, 1.0)]
        steps = [
            kernel(1.0 + 2 * stage),
            reduce_all(0.5, 0),
            *communication,
            reduce_all(2.0, 1),
            reduce_all(0.0, 2),
            step(),
        ]
        return program(rank, steps, groups)

    everyone = replay_world({r: written(r) for r in range(8)}, {r: r for r in range(8)}, 8)
    few = replay_world({r: written(r) for r in (0, 2)}, {r: r // 2 % 2 * 2 for r in range(8)}, 8)
    assert sorted(few.ranks) == [0, 2]
    for rank in range(8):
        assert few.ranks[few.image[rank]].end.tolist() == pytest.approx(
            everyone.ranks[rank].end.tolist(), nan_ok=True
        )
    assert few.ranks[0].step_ends.tolist() == [6.5]


def test_the_middle_stages_of_a_pipeline_are_one_program_and_many_times():
    """Three programs play six stages: the middle one four times, each when its data comes."""

    def written(stage: int):
        steps = [kernel(1.0)]
        steps = [receive(stage - 1), *steps] if stage else steps
        return program(stage, [*steps, send(stage + 1)] if stage < 5 else steps, [tuple(range(6))])

    world = replay_world({s: written(s) for s in (0, 1, 5)}, {0: 0, 1: 1, 2: 1, 3: 1, 4: 1, 5: 5}, 6)
    assert sorted(world.ranks) == [0, 1, 2, 3, 4, 5]
    assert [np.nanmax(world.ranks[s].end) for s in range(6)] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert world.n_unmet == world.n_alone == 0


# -- any world -----------------------------------------------------------------------------------------------

TIMES = st.integers(0, 8).map(lambda n: n / 4)


@st.composite
def worlds(draw):
    """A mesh, how slow each rank is, and what is done in turn."""
    sizes = tuple(draw(st.lists(st.integers(2, 4), min_size=1, max_size=3)))
    slow = draw(st.dictionaries(st.integers(0, prod(sizes) - 1), st.integers(1, 2), max_size=3))
    kinds = st.sampled_from(["kernel", "host", "reduce", "start", "wait", "shift"])
    moves = draw(st.lists(st.tuples(kinds, st.integers(0, len(sizes)), TIMES, TIMES), max_size=14))
    return sizes, slow, moves


def mesh_line(rank: int, axis: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    stride = prod(sizes[:axis])
    first = rank - rank // stride % sizes[axis] * stride
    return tuple(first + i * stride for i in range(sizes[axis]))


def kind_of(rank: int, sizes: tuple[int, ...], slow: dict[int, int]) -> tuple[int, int]:
    """The outermost axis is a pipeline: first, last or between; and some ranks, wherever they lie, are slower."""
    at = rank // prod(sizes[:-1])
    return 0 if at == 0 else 2 if at == sizes[-1] - 1 else 1, slow.get(rank, 0)


def written(rank: int, sizes: tuple[int, ...], slow: dict[int, int], moves):
    groups = [mesh_line(rank, axis, sizes) for axis in range(len(sizes))] + [tuple(range(prod(sizes)))]
    last = len(sizes) - 1
    stages, kind = groups[last], kind_of(rank, sizes, slow)
    at, weight = stages.index(rank), 1 + sum(kind)
    steps, started = [], []
    for i, (what, where, one, other) in enumerate(moves):
        if what == "kernel":
            steps.append(kernel(one * weight, stream=where % 2, host=other))
        elif what == "host":
            steps.append(host(one * weight))
        elif what == "reduce":
            steps.append(reduce_all(one, where, stream=i % 2))
        elif what == "start":
            steps.append(reduce_all(one, where, is_async=True, id=i, stream=i % 2))
            started.append(i)
        elif what == "wait" and started:
            steps.append(wait(started.pop(), stream=where % 2))
        elif what == "shift":
            steps += [receive(stages[at - 1], last, one)] if at > 0 else []
            steps += [send(stages[at + 1], last, one)] if at < len(stages) - 1 else []
    return program(rank, [*steps, step()], groups)


@settings(max_examples=40, deadline=None)
@given(worlds())
def test_those_that_stand_for_others_take_the_same_time_as_all_ranks_together(world):
    sizes, slow, moves = world
    ranks = range(prod(sizes))
    lowest: dict[tuple[int, ...], int] = {}
    shown = {rank: lowest.setdefault(kind_of(rank, sizes, slow), rank) for rank in ranks}
    programs = {rank: written(rank, sizes, slow, moves) for rank in ranks}
    everyone = replay_world(programs, {rank: rank for rank in ranks}, len(ranks))
    few = replay_world({r: programs[r] for r in lowest.values()}, shown, len(ranks))
    again = replay_world({r: programs[r] for r in lowest.values()}, shown, len(ranks))
    assert everyone.n_unmet == everyone.n_alone == few.n_unmet == few.n_alone == 0
    assert set(few.image) == set(ranks)
    for rank in ranks:
        played, truth = few.ranks[few.image[rank]], everyone.ranks[rank]
        for name in ("issued", "ready", "start", "end", "step_ends"):
            np.testing.assert_array_equal(getattr(played, name), getattr(truth, name))
        np.testing.assert_array_equal(played.stalls.start, truth.stalls.start)
        np.testing.assert_array_equal(played.stalls.cause, truth.stalls.cause)
    for rank, one in few.ranks.items():
        np.testing.assert_array_equal(one.end, again.ranks[rank].end)
